package podstate

// ChoseCurrent is the choice of the current content over a recorded revision.
// No ControllerRevision can have that name.
const ChoseCurrent = "Current"

// RevisionChoices is the value of the annotation that remembers choices which
// chance made: by SidecarSet, the name of the ControllerRevision that the Pod was
// given, or ChoseCurrent.
type RevisionChoices map[string]string

// ParseRevisionChoices reads the annotation. A value that makes no sense gives
// no choices.
func ParseRevisionChoices(value string) RevisionChoices {
	choices, _ := parseTexts(value)
	return choices
}

// String renders the annotation's value, names sorted.
func (c RevisionChoices) String() string { return formatTexts(c) }
