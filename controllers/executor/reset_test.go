package executor

import (
	"errors"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/tracker"
)

// upgraded is a Pod whose hot upgrade is to be ended, and its SidecarSet.
func upgraded(t *testing.T) (*corev1.Pod, *inject.Compiled) {
	t.Helper()
	compiled := compiledOf(t, `containers: [{name: side, image: "side:v2", upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: empty}}]`)
	p := outdated(t, "p")
	for key, value := range map[string]string{
		"kruise.io/sidecarset-hash":                         `{"log":{"hash":"` + compiled.Hash + `"}}`,
		"kruise.io/sidecarset-hash-without-image":           `{"log":{"hash":"` + compiled.HashWithoutImage + `"}}`,
		"kruise.io/sidecarset-working-hotupgrade-container": `{"side":"side-2"}`,
		"version.sidecarset.kruise.io/side-2":               "9",
		"versionalt.sidecarset.kruise.io/side-2":            "8",
	} {
		p.Annotations[key] = value
	}
	p.Spec.Containers[1].Name, p.Status.ContainerStatuses[1].Name = "side-1", "side-1"
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "side-2", Image: "side:v2"})
	status := p.Status.ContainerStatuses[1]
	status.Name, status.Image, status.ImageID = "side-2", "side:v2", "sha256:2"
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, status)
	return p, compiled
}

// An Event reports the end of a hot upgrade, or why it is refused. No Event reports a failure that
// is tried again.
func TestResets(t *testing.T) {
	const done, failed = "Normal ResetContainerSucceed reset sidecar container image empty successfully", "Warning ResetContainerFailed reset sidecar container image empty failed: hands off"
	etcd := apierrors.NewInternalError(errors.New("etcd"))
	for name, tc := range map[string]struct {
		fails      int
		carriedOut bool
		err        error
		image      string
		told       string
		kind       string
		reason     inplace.Reason
	}{
		"it is ended":            {0, false, nil, "empty", done, isWritten, ""},
		"the answer was lost":    {1, true, etcd, "empty", "", isWritten, ""},
		"the API server refuses": {1, false, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "hands off"}}, "side:v1", failed, isRest, inplace.WriteRejected},
		"it has ended":           {-1, false, nil, "empty", "", isStale, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, compiled := upgraded(t)
			if tc.fails < 0 {
				p.Spec.Containers[1].Image = "empty"
			}
			r := newRig(t, p)
			r.follow(compiled)
			var told []string
			r.RecordEvent = func(e events.Event) {
				told = append(told, e.Type+" "+e.Reason+" "+e.Note)
				if want := (events.Pod{Namespace: "a", Name: "p", UID: "p", Version: e.Pod.Version}); e.Pod != want || e.About.UID != "set" {
					t.Errorf("the Event is about %+v of %+v", e.Pod, e.About)
				}
			}
			if tc.fails > 0 {
				r.failPatches(tc.fails, tc.carriedOut, tc.err)
			}
			check(t, r.try(t, "p", tracker.Reset), tc.kind, tc.reason, "")
			if got := r.image(t, "p"); got != tc.image {
				t.Errorf("the old container has the image %s, want %s", got, tc.image)
			}
			if len(told) != min(1, len(tc.told)) || len(told) == 1 && told[0] != tc.told {
				t.Errorf("the Events are %q, want %q", told, tc.told)
			}
		})
	}
}
