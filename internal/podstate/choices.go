package podstate

// ChoseCurrent is the choice of the current content over a recorded revision.
// No ControllerRevision can have that name.
const ChoseCurrent = "Current"

// ParseRevisionChoices reads the annotation that records random choices between revisions: by
// SidecarSet, the name of the ControllerRevision that the Pod was given, or ChoseCurrent. An
// unreadable value gives no choices.
func ParseRevisionChoices(value string) map[string]string {
	choices, _ := parseTexts(value)
	return choices
}
