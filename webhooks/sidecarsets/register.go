package sidecarsets

import (
	"context"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
)

// Registrar makes API servers call us for the Pods that a SidecarSet selects.
type Registrar interface {
	// Register is for a SidecarSet that is about to be stored. It returns nil once every
	// API server calls us for its Pods, and an error if ctx ends before.
	Register(ctx context.Context, set *appsv1beta1.SidecarSet) error
}

// registerTimeout is how long the requester of a SidecarSet waits for API servers at most. It
// usually takes 10 to 50 ms.
const registerTimeout = 500 * time.Millisecond

// register is the last step before a SidecarSet is stored. If it succeeds, the Pod webhook is
// injected into Pods that directly follow the SidecarSet. If it fails, the requester gets a
// warning and no refusal, because the leader writes the webhook later.
func (v *validator) register(ctx context.Context, request *admissionv1.AdmissionRequest, set, old *hub.SidecarSet) []string {
	if v.Registrar == nil { // this process may not write webhooks
		return nil
	}
	if request.DryRun != nil && *request.DryRun {
		return nil
	}
	if old != nil && set.Set.Generation == old.Set.Generation { // so the selectors are the same
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	if err := v.Registrar.Register(ctx, set.Set); err != nil {
		return []string{"not Ready yet; before you create Pods, wait for the condition " + appsv1beta1.ConditionReady + ": " + err.Error()}
	}
	return nil
}
