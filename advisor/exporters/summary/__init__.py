"""What a bundle says about itself: SUMMARY.txt and report.html, for people, and the differences of one format."""
