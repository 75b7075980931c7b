"""The sanitizer: observers that judge a run of the machine, and their facts as findings."""
