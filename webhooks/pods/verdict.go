package pods

import (
	"context"
	"errors"
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
	plan   inject.Plan // of the results injected and unchanged
	err    error       // of the results denied, invalid, error and abandoned
}

// errAbandoned is for a client that does not wait for the answer any more.
var errAbandoned = server.Refusal{Code: http.StatusServiceUnavailable, Message: "the client did not wait for the answer"}

// write answers the request.
func (v *verdict) write(ctx context.Context, w http.ResponseWriter) {
	if v.result == resultInvalid {
		w.Header().Set("Connection", "close") // what comes next will be no better
	}
	switch {
	case v.err == nil && v.result == resultInjected:
		server.WritePatch(w, v.head.UID, v.plan.AppendPatch, auditValue(v.plan.Injected))
	case v.err == nil:
		v.logAllowed(ctx)
		server.WriteAllowed(w, v.head.UID)
	case v.result == resultDenied:
		v.deny(ctx, w, http.StatusUnprocessableEntity, fmt.Sprintf("injecting into Pod %s: %v", v.head.PodName(), v.err))
	case v.result == resultInvalid && v.head.UID != "":
		v.deny(ctx, w, http.StatusBadRequest, v.err.Error())
	default:
		v.refuse(ctx, w)
	}
}

// refuse answers without a decision. If the cause is this replica, the log tells
// it; if it is the client, only a verbose log does.
func (v *verdict) refuse(ctx context.Context, w http.ResponseWriter) {
	refusal := server.Refusal{Code: http.StatusInternalServerError, Message: v.err.Error()}
	_ = errors.As(v.err, &refusal) // keeps refusal, unless err is one
	logger := logf.FromContext(ctx)
	if v.result != resultError {
		logger = logger.V(1)
	}
	logger.Info("Could not answer an AdmissionReview", "code", refusal.Code, "reason", refusal.Message)
	server.WriteRefusal(w, refusal)
}

// deny refuses the Pod and tells its creator why.
func (v *verdict) deny(ctx context.Context, w http.ResponseWriter, code int, message string) {
	logf.FromContext(ctx).V(1).Info("Denied a Pod", "Pod", v.head.PodName(), "code", code, "reason", message)
	server.WriteDenied(w, v.head.UID, code, message)
}

// logAllowed says why a Pod stays as it is.
func (v *verdict) logAllowed(ctx context.Context) {
	logger := logf.FromContext(ctx).V(1)
	switch {
	case !logger.Enabled():
	case v.result != resultUnchanged:
		logger.Info("Left a Pod alone", "Pod", v.head.PodName(), "result", string(v.result))
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
