package pods

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/review"
	"github.com/sidecarset/operator/webhooks/server"
)

// verdict is how one admission ends.
type verdict struct {
	result admissionResult
	head   review.Head // as far as it was read
	plan   inject.Plan // for the results injected and unchanged
	by     selection   // that the plan was made from
	err    error       // for the results denied, invalid, error and abandoned
}

// errAbandoned is the refusal of a request whose client does not wait for the answer.
var errAbandoned = &server.Refusal{Code: http.StatusServiceUnavailable, Message: "the client did not wait for the answer"}

// write answers the request, or returns the refusal.
func (v *verdict) write(ctx context.Context, w http.ResponseWriter) error {
	switch {
	case v.result == resultDenied:
		return &server.Refusal{UID: v.head.UID, Code: http.StatusUnprocessableEntity, Message: fmt.Sprintf("injecting into Pod %s: %v", v.head.PodName(), v.err)}
	case v.err != nil:
		return v.err
	}
	answer := server.Answer{UID: v.head.UID}
	if v.result == resultInjected {
		answer.Patch, answer.AuditKey, answer.AuditValue = v.plan.AppendPatch, "injected", auditValue(v.plan.Injected)
	} else {
		v.logAllowed(ctx)
	}
	answer.Write(w)
	return nil
}

// logAllowed says why a Pod stays as it is.
func (v *verdict) logAllowed(ctx context.Context) {
	logger := logf.FromContext(ctx).V(1)
	switch {
	case !logger.Enabled():
	case v.result != resultUnchanged:
		logger.Info("Did not inject a Pod", "Pod", v.head.PodName(), "result", string(v.result))
	default:
		for _, skip := range v.plan.Skipped {
			logger.Info("Skipped a SidecarSet", "Pod", v.head.PodName(), "SidecarSet", skip.SidecarSet, "reason", string(skip.Reason))
		}
	}
}

// auditValue keeps audit events small, however many SidecarSets there are.
func auditValue(names []string) string {
	const most = 20 // times 253 bytes: 5 KB
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ","), len(names)-most)
	}
	return strings.Join(names, ",")
}
