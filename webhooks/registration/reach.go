package registration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unreachable says that no API server answers the operator at an address: nothing is there, or
// something else, such as a proxy, or an API server that does not know the operator's credentials.
type unreachable struct {
	why   error
	since time.Time
}

// refusedError says that an API server, or a policy, does not let the operator ask.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// create creates a ConfigMap, and notes whether an API server has answered. One connection may end,
// so an address has two attempts before it is left out.
func (p *prober) create(ctx context.Context, s *apiServer, probe *corev1.ConfigMap) (answer *corev1.ConfigMap, err error) {
	for range 2 {
		answer, err = s.configMaps.Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || isAnswer(err) || ctx.Err() != nil || s.unreachable.Load() != nil {
			break
		}
	}
	switch {
	case err == nil, isAnswer(err):
		s.unreachable.Store(nil)
	case ctx.Err() == nil:
		s.isUnreachable(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		s.refusal = nil
	case isRefusal(err):
		err = refusedError{err}
		s.refusal = fmt.Errorf("API server %s: %w", s.address, err)
	}
	return answer, err
}

// isUnreachable notes that no API server answers.
func (s *apiServer) isUnreachable(why error) {
	u := &unreachable{why, time.Now()}
	if known := s.unreachable.Load(); known != nil {
		u.since = known.since
	}
	s.unreachable.Store(u)
}

// isAnswer reports whether an error is the answer of an API server that knows the operator.
func isAnswer(err error) bool {
	_, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && !apierrors.IsUnexpectedServerError(err) && !apierrors.IsUnauthorized(err)
}

// isRefusal reports whether an answer says that the operator may not create the ConfigMap, as an
// admission plugin, a policy or a missing right does. It may create it later if the API server is
// only busy.
func isRefusal(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !isAnswer(err) {
		return false
	}
	code := status.ErrStatus.Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests && code != http.StatusConflict
}

// leftOut names the published addresses that do not count, if that lasts for longer than an API
// server takes to restart; "" if there are none.
func (p *prober) leftOut(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, s := range p.servers {
		if u := s.unreachable.Load(); u != nil && now.Sub(u.since) >= silentAfter {
			all = append(all, fmt.Sprintf("%s (%v)", s.address, u.why))
		}
	}
	return strings.Join(all, ", ")
}
