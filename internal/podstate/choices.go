package podstate

// ChoseCurrent is the choice of the current content over a recorded revision.
// No ControllerRevision can have that name.
const ChoseCurrent = "Current"

// ParseRevisionChoices reads the annotation that remembers choices which chance made:
// by SidecarSet, the name of the ControllerRevision that the Pod was given, or
// ChoseCurrent. A value that makes no sense gives no choices.
func ParseRevisionChoices(value string) map[string]string {
	choices, _ := parseTexts(value)
	return choices
}
