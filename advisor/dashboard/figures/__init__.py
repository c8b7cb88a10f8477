"""The figures, drawn with plotly."""
