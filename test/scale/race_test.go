package scale

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// race compares the operator with a bare client, which makes one GET and one PATCH for each Pod
// and decides nothing. It has the same credentials. Like the operator, it is another program
// than the one that created the Pods. The operator updates one half of the SidecarSets, with a
// budget of all Pods, and the client the other half. Unlike the client, the operator begins with
// one Pod of each SidecarSet, and doubles. They take turns of few Pods, and take turns at
// beginning, because the speed of a machine changes within a minute. Each pair of turns is one
// comparison.
func (r *run) race(t *testing.T) {
	t.Helper()
	var ours, bare []string
	for i, name := range r.names {
		if i%4 < 2 {
			ours = append(ours, name)
		} else {
			bare = append(bare, name)
		}
	}
	ours = ours[:len(bare)]
	if len(bare) == 0 {
		t.Log("SKIP: the race of the operator and a bare client needs 4 SidecarSets")
		return
	}
	r.setBudget(t, "100%", ours)
	var first, later, all pairs
	for round := range rounds {
		of := &later
		if round == 0 {
			of = &first
		}
		for from := 0; from < len(bare); from += turn {
			to := min(from+turn, len(bare))
			pair := r.compare(t, image(round+2), ours[from:to], bare[from:to], (round+from/turn)%2 == 0)
			of.add(pair)
			all.add(pair)
		}
	}
	t.Logf("FIGURES race, first image, with the condition of each Pod: %s", first)
	t.Logf("FIGURES race, later images: %s", later)
	t.Logf("FIGURES race, all images: %s", all)
}

// compare is one pair of turns.
func (r *run) compare(t *testing.T, image string, ours, bare []string, oursFirst bool) (pair [2]pace) {
	t.Helper()
	byOperator := func() {
		r.phase(t, "race/operator", func(ctx context.Context) string {
			pair[0] = r.rollBy(ctx, t, ours, image, func() { r.setImage(t, image, ours) })
			r.await(ctx, t, "conditions", func() error { return r.watching.told(ours, r.each) }) // the operator must not write them during the client's turn
			return pair[0].String()
		})
	}
	if oursFirst {
		byOperator()
	}
	r.phase(t, byBareClient, func(ctx context.Context) string {
		pair[1] = r.rollBy(ctx, t, bare, image, func() { r.patchAll(ctx, t, bare, image) })
		return pair[1].String()
	})
	if !oursFirst {
		byOperator()
	}
	return pair
}

// pace is how many Pods are written in a second, and how many Pods begin to run their image in a
// second, both from the first write. The simulated kubelet and the writer share the API server:
// the faster the writer is, the later the kubelet follows.
type pace struct{ written, running float64 }

func (p pace) String() string {
	return fmt.Sprintf("wrote %.0f Pods/s, ran %.0f Pods/s", p.written, p.running)
}

// pairs are the paces of the operator and of the bare client, turn by turn.
type pairs struct{ written, running ratios }

func (p *pairs) add(pair [2]pace) {
	p.written.add(pair[0].written, pair[1].written)
	p.running.add(pair[0].running, pair[1].running)
}

func (p pairs) String() string {
	return fmt.Sprintf("Pods that are written: %s; that run the image: %s", p.written, p.running)
}

type ratios struct{ ours, bare, of []float64 }

func (r *ratios) add(ours, bare float64) {
	r.ours, r.bare, r.of = append(r.ours, ours), append(r.bare, bare), append(r.of, ours/bare)
}

func (r ratios) String() string {
	if len(r.of) == 0 {
		return "no turns"
	}
	quartile := func(values []float64, n int) float64 {
		return slices.Sorted(slices.Values(values))[(len(values)-1)*n/4]
	}
	return fmt.Sprintf("operator %.0f/s, bare client %.0f/s, %.2f of it (quartiles of %d pairs %.2f to %.2f)",
		quartile(r.ours, 2), quartile(r.bare, 2), quartile(r.of, 2), len(r.of), quartile(r.of, 1), quartile(r.of, 3))
}

// patchAll is the bare client.
func (r *run) patchAll(ctx context.Context, t *testing.T, names []string, image string) {
	t.Helper()
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	var numbers []int
	for i := range r.each * sets {
		if wanted[r.setOf(i)] {
			numbers = append(numbers, i)
		}
	}
	parallel(t, writers, len(numbers), func(i int) error {
		key := client.ObjectKey{Namespace: r.namespace, Name: r.nameNow(numbers[i])}
		for {
			pod := &corev1.Pod{}
			if err := r.bare.Get(ctx, key, pod); err != nil {
				return err
			}
			list := "containers"
			if len(pod.Spec.InitContainers) > 0 {
				list = "initContainers"
			}
			patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{%q:[{"name":%q,"image":%q}]}}`, pod.ResourceVersion, list, sidecarName, image)
			err := r.bare.Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, []byte(patch)), client.FieldOwner("bare-client"))
			if !apierrors.IsConflict(err) {
				return err
			}
		}
	})
}
