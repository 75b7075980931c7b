"""Key actions on the workspace: mixins with `action_…` methods, one file per kind of action."""
