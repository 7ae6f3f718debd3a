package server

import (
	"net/url"
	"time"
)

// answerMargin is the part of the API server's time that is left for the way back,
// so that the API server hears the reason of a refusal and not a timeout.
const answerMargin = 300 * time.Millisecond

// timeToAnswer is how long the answer to a request may take. The query says how long the
// API server waits, such as ?timeout=5s. If it does not, or if it says more than longest,
// longest counts.
func timeToAnswer(u *url.URL, longest time.Duration) time.Duration {
	if u.RawQuery != "" {
		if waits, err := time.ParseDuration(u.Query().Get("timeout")); err == nil && waits > 0 {
			longest = min(waits, longest)
		}
	}
	return longest - min(answerMargin, longest/2)
}
