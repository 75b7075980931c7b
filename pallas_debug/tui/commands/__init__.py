"""Actions of the keys on the workspace: `action_…` methods of mixins, a file per kind."""
