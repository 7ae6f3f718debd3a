package inplace_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/test/rounds"
)

// However often the user changes resources while resizes are recorded, refused and carried
// out, each value is recognised as the operator's own, and in the end the Pod has the revision.
func TestResizesThatOverlapReachTheRevision(t *testing.T) {
	var sets []*fixtures.SidecarSetBuilder
	for _, cpu := range []string{"100m", "200m", "300m", "400m"} {
		for _, version := range []string{"1", "2"} {
			sets = append(sets, sizedSet(version, cpu))
		}
	}
	first := running(t, sets[0])
	for i := range first.Status.ContainerStatuses {
		s := &first.Status.ContainerStatuses[i]
		s.Resources = containerNamed(first, s.Name).Resources.DeepCopy()
	}
	var inputs []inplace.UpdateInput
	for _, set := range sets {
		inputs = append(inputs, inplace.UpdateInput{Compiled: fixtures.Compiled(t, set.Map()), Revision: revisionOf(t, set, sets...)})
	}
	for seed := range uint64(rounds.Of(300, 30)) {
		chance := rand.New(rand.NewPCG(seed, 7))
		pod, want, now := first.DeepCopy(), 0, updatedAt
		// step makes one write, which the API server may refuse, and reports whether there was one.
		step := func(mayRefuse bool) bool {
			in := inputs[want]
			in.Pod, in.Now = pod, now
			u, err := update(in)
			if err != nil || u.Verdict.Reason != "" {
				t.Fatalf("seed %d: %+v, %v", seed, u.Verdict, err)
			}
			switch resizes := u.Verdict.Method == inplace.Resize; {
			case u.Record != nil:
				pod = patched(t, pod, u.Record)
			case u.Patch == nil:
				return false
			case mayRefuse && chance.IntN(3) == 0:
			default:
				pod = patched(t, pod, u.Patch)
				if resizes || len(u.Changes) > 0 {
					pod.Generation++
				}
			}
			return true
		}
		carryOut := func() {
			pod.Status.ObservedGeneration = pod.Generation
			for i := range pod.Status.ContainerStatuses {
				s := &pod.Status.ContainerStatuses[i]
				if c := containerNamed(pod, s.Name); s.Image != c.Image {
					kubeletReports(pod, s.Name, "", now)
				} else {
					s.Resources = c.Resources.DeepCopy()
				}
			}
		}
		for range 30 {
			now = now.Add(time.Second)
			switch chance.IntN(4) {
			case 0:
				want = chance.IntN(len(sets))
			case 1:
				carryOut()
			default:
				step(true)
			}
		}
		for range 10 {
			now = now.Add(time.Second)
			carryOut()
			step(false)
		}
		carryOut()
		c := containerNamed(pod, "log")
		wanted := inputs[want].Compiled.Set.Spec.Containers[0].Image
		if step(false) || c.Image != wanted || !c.Resources.Requests.Cpu().Equal(resource.MustParse([]string{"100m", "200m", "300m", "400m"}[want/2])) {
			t.Fatalf("seed %d: in the end the Pod has %s, %v; want %s and revision %d", seed, c.Image, c.Resources.Requests, wanted, want)
		}
		if w := written(pod); w.At != 0 && !w.IsCarriedOut(now.Unix()+60) {
			t.Fatalf("seed %d: in the end it says %+v", seed, w)
		}
	}
}
