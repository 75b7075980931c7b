"""What the keys do to the workspace: `action_…` methods of mixins, a file per kind."""
