package executor

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
)

// upgraded is a Pod whose hot upgrade is to be ended, and its SidecarSet.
func upgraded(t *testing.T) (*corev1.Pod, *inject.Program) {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"log","uid":"set","generation":2},
		"spec":{"selector":{"matchLabels":{"app":"web"}},"containers":[{"name":"side","image":"side:v2","upgradeStrategy":{"upgradeType":"HotUpgrade","hotUpgradeEmptyImage":"empty"}}]}}`), &object); err != nil {
		t.Fatal(err)
	}
	program, err := inject.Compile(object)
	if err != nil {
		t.Fatal(err)
	}
	p := outdated(t, "p")
	for key, value := range map[string]string{
		"kruise.io/sidecarset-hash":                         `{"log":{"hash":"` + program.Hash + `"}}`,
		"kruise.io/sidecarset-hash-without-image":           `{"log":{"hash":"` + program.HashWithoutImage + `"}}`,
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
	return p, program
}

// An Event reports the end of a hot upgrade, or why it is not ended. No Event reports a
// failure that is retried at once.
func TestTheEndOfAHotUpgradeIsTold(t *testing.T) {
	const done, failed = "Normal ResetContainerSucceed reset sidecar container image empty successfully", "Warning ResetContainerFailed reset sidecar container image empty failed: hands off"
	for name, tc := range map[string]struct {
		err   error
		image string
		told  string
		rest  time.Duration
	}{
		"it is ended":               {nil, "empty", done, staleWait},
		"another writer was faster": {apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("changed")), "empty", done, staleWait},
		"the API server refuses":    {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "hands off"}}, "side:v1", failed, refusalWait},
		"the API server fails":      {apierrors.NewInternalError(errors.New("etcd")), "side:v1", "Warning ResetContainerFailed reset sidecar container image empty failed: Internal error occurred: etcd", failureWait},
		"the API server is slow":    {context.DeadlineExceeded, "side:v1", "Warning ResetContainerFailed reset sidecar container image empty failed: context deadline exceeded", failureWait},
		"the Pod is gone":           {apierrors.NewNotFound(corev1.Resource("pods"), "p"), "side:v1", "", staleWait},
		"the Lease is old":          {errNotLeading, "side:v1", "", staleWait},
	} {
		t.Run(name, func(t *testing.T) {
			p, program := upgraded(t)
			r := newRig(t, p)
			var told []string
			r.RecordEvent = func(e events.Event) {
				told = append(told, e.Type+" "+e.Reason+" "+e.Note)
				if want := (events.Pod{Namespace: "a", Name: "p", UID: "p", Version: e.Pod.Version}); e.Pod != want || e.About.UID != "set" {
					t.Errorf("the Event is about %+v of %+v", e.Pod, e.About)
				}
			}
			if tc.err != nil {
				r.failPatches(1, false, tc.err)
			}
			rest := r.attend(t.Context(), tally.Due{Program: program, Content: inplace.ContentOf(program)}, tally.Chore{Pod: podstate.FromPod(p)})
			if rest != tc.rest {
				t.Errorf("the Pod rests %s, want %s", rest, tc.rest)
			}
			if got := r.image(t, "p"); got != tc.image {
				t.Errorf("the old container has the image %s, want %s", got, tc.image)
			}
			if len(told) != min(1, len(tc.told)) || len(told) == 1 && told[0] != tc.told {
				t.Errorf("the Events are %q, want %q", told, tc.told)
			}
		})
	}
}

// If no digest shows what the new container ran before, the time decides. As long as there is
// nothing to do, the Pod is not read every second.
func TestAHotUpgradeEndsOnceItsEvidenceHasSettled(t *testing.T) {
	for name, tc := range map[string]struct {
		ago   time.Duration
		image string
		rest  time.Duration
	}{
		"just updated":          {0, "side:v1", failureWait},
		"updated an hour ago":   {time.Hour, "empty", staleWait},
		"and not started since": {time.Hour, "side:v1", failureWait},
	} {
		t.Run(name, func(t *testing.T) {
			p, program := upgraded(t)
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "SidecarSetUpgradable", Status: "True", Reason: "AllSidecarsetUpgradable", Message: `{"log":true}`})
			before := podstate.Before{ID: "c://earlier", Image: "empty", Digest: "sha256:2"}
			if name == "and not started since" {
				before.ID = p.Status.ContainerStatuses[2].ContainerID
			}
			entry := podstate.Entry{Generation: p.Generation, At: time.Now().Add(-tc.ago), Containers: map[string]podstate.Before{"side-2": before}}
			p.Annotations["sidecarset.io/in-place"] = podstate.Entries{}.With("log", entry).Format(p.UID)
			r := newRig(t, p)
			r.RecordEvent = func(events.Event) {}
			rest := r.attend(t.Context(), tally.Due{Program: program, Content: inplace.ContentOf(program)}, tally.Chore{Pod: podstate.FromPod(p)})
			if got := r.image(t, "p"); got != tc.image || rest != tc.rest {
				t.Errorf("the old container has the image %s, and the Pod rests %s; want %s and %s", got, rest, tc.image, tc.rest)
			}
		})
	}
}
