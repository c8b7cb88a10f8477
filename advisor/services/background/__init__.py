"""What happens without being asked: waiting jobs are planned and scheduled, silent sessions given up, agents called."""
