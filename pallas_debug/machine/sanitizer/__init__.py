"""The sanitizer: observers that check a run of the machine, and their facts as findings."""
