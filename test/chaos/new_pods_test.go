package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/testkit"
)

// The leader is killed at random moments while new Pods wait for a revision to be stable. While Ready is True, a
// new Pod gets the current image; before, it gets the earlier one, or the current one because that has just been
// released. Each revision is released once a leader is back.
func TestKillingTheLeaderWhileNewPodsAreHeldBack(t *testing.T) {
	r := newRolled(t, 6, 2)
	set, err := testkit.Get(t.Context(), api, r.name)
	if err != nil {
		t.Fatal(err)
	}
	stable := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q,%q:"2"}}}`, appsv1beta1.AnnotationNewPods, appsv1beta1.StableNewPods, appsv1beta1.AnnotationMinReadySeconds)
	if err := api.Patch(t.Context(), set, client.RawPatch("application/merge-patch+json", []byte(stable))); err != nil {
		t.Fatal(err)
	}
	r.controllers.await(t, r.name, "the condition Ready", testkit.Ready)
	before := r.begin(t)
	r.end(t, before)
	r.controllers.await(t, r.name, "the first image to be stable", testkit.Ready)
	kills, held, created := 0, 0, 0
	for range testkit.Scaled(2, 40) {
		image, last := r.begin(t), time.Now()
		kill := time.After(rand.N(5 * time.Second))
		for ready := false; !ready; <-time.After(20 * time.Millisecond) {
			select {
			case <-kill:
				r.controllers.replicas[r.controllers.awaitLeader(t)].Kill()
				kills++
			default:
			}
			r.controllers.revive(t)
			set, err := testkit.Get(t.Context(), api, r.name)
			if err != nil {
				t.Fatal(err)
			}
			ready = testkit.Ready(set) == nil
			pod := testkit.NewPod(testkit.AppLabels(r.name))
			pod.Namespace = r.namespace
			if err := api.Create(t.Context(), pod, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			created++
			switch got := testkit.WantedImage(pod, r.name); {
			case got == image:
				if set, err = testkit.Get(t.Context(), api, r.name); err != nil || set.Status.StableRevision != set.Status.LatestRevision {
					t.Fatalf("a new Pod got %s, which is not stable: %v, %+v", got, err, set.Status)
				}
			case ready, got != before:
				t.Fatalf("Ready is %t, and a new Pod got %s, want %s", ready, got, image)
			default:
				held++
			}
			if time.Since(last) > rolloutPatience {
				t.Fatalf("%s is held back for %v: %+v", image, rolloutPatience, set.Status.Conditions)
			}
		}
		r.end(t, image)
		before = image
	}
	if held == 0 || kills == 0 {
		t.Errorf("%d Pods were held back, %d leaders killed", held, kills)
	}
	testkit.Report(t, "new Pods=%d held back=%d leaders killed=%d", created, held, kills)
}
