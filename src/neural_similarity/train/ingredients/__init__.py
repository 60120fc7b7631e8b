"""What recipes are made of: losses, schedules, weight decay, and BatchNorm settings."""
