"""Equal cost: the curve of plain networks, and which networks lie above it."""
