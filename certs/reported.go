package certs

// lastReason is why something did not work when that was last reported; "" if it worked.
type lastReason string

// news takes the reason why something does not work, nil if it does. It returns true if that is another reason than last time, so
// that a failure is reported once, not at every attempt.
func (l *lastReason) news(reason error) bool {
	before := *l
	*l = ""
	if reason != nil {
		*l = lastReason(reason.Error())
	}
	return reason != nil && *l != before
}
