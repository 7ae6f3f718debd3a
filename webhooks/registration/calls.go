package registration

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/readiness"
	"github.com/sidecarset/operator/internal/status"
)

// calls says whether the last calls of one API server were answered. The zero value knows nothing.
type calls struct {
	missed      int       // the number of calls since the last answer
	since, last time.Time // of the first of them, and of the last call
}

const (
	// An API server counts as unanswered if none of its calls is answered for silentAfter, and if
	// there were at least silentCalls of them: the leader may have been suspended. Short
	// silences are normal. A replica that crashes does not answer its calls. Nor do replicas
	// on a lost node, until their endpoints are withdrawn. A call says nothing about the time after
	// silentAfter.
	silentAfter = time.Minute
	silentCalls = 3
)

// missed notes a call that was not answered.
func (p *prober) missed(s *apiServer, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.calls.missed == 0 || now.Sub(s.calls.last) > silentAfter {
		s.calls = calls{since: now}
	}
	s.calls.missed++
	s.calls.last = now
}

// answered reports whether a call was answered in the last minute. Then API servers accept the
// certificates that replicas serve, even if they would not accept that of this process.
func (p *prober) answered(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.lastCall.IsZero() && now.Sub(p.lastCall) < silentAfter
}

// problem says which API servers get no answer; nil if none is known.
func (p *prober) problem(namespace string, now time.Time) *status.Readiness {
	p.mu.Lock()
	defer p.mu.Unlock()
	var silent []string
	others := false // are answered, or not for long enough
	for _, s := range p.counted() {
		switch {
		case now.Sub(s.calls.last) > silentAfter:
		case s.calls.missed >= silentCalls && now.Sub(s.calls.since) >= silentAfter:
			silent = append(silent, s.address)
		default:
			others = true
		}
	}
	if len(silent) == 0 {
		return nil
	}
	slices.Sort(silent)
	consequence := "selected Pods are refused, or created without sidecars where " + appsv1beta1.AnnotationFailurePolicy + " is Ignore. " +
		"Look at the operator's Pods in namespace " + namespace + ", at the endpoints of its Service, and at what may keep API servers from reaching them (network policies, firewalls)."
	if !others {
		return readiness.No(appsv1beta1.ReasonNoReplica, fmt.Sprintf("No replica of the operator has answered API servers for a minute: %s", consequence))
	}
	return readiness.No(appsv1beta1.ReasonWebhookUnreachable, fmt.Sprintf("No replica of the operator has answered API server %s for a minute, though others are answered. Through it, %s",
		strings.Join(silent, ", "), consequence))
}
