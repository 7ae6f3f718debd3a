package rollout_test

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

func byOrder(keys ...string) *appsv1beta1.UpdatePriorityStrategy {
	p := &appsv1beta1.UpdatePriorityStrategy{}
	for _, key := range keys {
		p.OrderPriority = append(p.OrderPriority, appsv1beta1.UpdatePriorityOrderTerm{OrderedKey: key})
	}
	return p
}

func scatterOver(key, value string) []appsv1beta1.UpdateScatterTerm {
	return []appsv1beta1.UpdateScatterTerm{{Key: key, Value: value}}
}

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// The default order: each Pod comes before the next by one of its steps.
func TestDefaultOrder(t *testing.T) {
	steps := []func(*rollout.Pod){
		func(p *rollout.Pod) { p.Ready, p.Order = false, podstate.Order{} },
		func(p *rollout.Pod) { p.Ready, p.Order = false, podstate.Order{Assigned: true} },
		func(p *rollout.Pod) {
			p.Ready, p.Order = false, podstate.Order{Assigned: true, Phase: podstate.Unknown}
		},
		func(p *rollout.Pod) { p.Ready, p.Order.ReadySince = false, 0 },
		func(p *rollout.Pod) { p.Order.ReadySince = 0 },
		func(p *rollout.Pod) { p.Order.ReadySince = 900 },
		func(p *rollout.Pod) { p.Order.Restarts = 2 },
		func(p *rollout.Pod) { p.Order.Restarts, p.Order.NativeRestarts = 1, 9 },
		func(p *rollout.Pod) { p.Order.NativeRestarts = 1 },
		func(p *rollout.Pod) { p.Order.Created = 0 },
		func(p *rollout.Pod) { p.Order.Created = 700 },
		func(p *rollout.Pod) {},
	}
	var pods []rollout.Pod
	var want []string
	for i, step := range steps {
		p := ready(i)
		p.Order = podstate.Order{Assigned: true, Phase: podstate.Running, ReadySince: 800, Created: 600}
		step(&p)
		pods = append(pods, p)
		if p.Ready {
			want = append(want, p.Name)
		} else {
			want = append(want, p.Name+" free")
		}
	}
	slices.Reverse(pods)
	expect(t, "in order", queue(strategy(update{MaxUnavailable: share("100")}), pods...).Next(100, 0), want...)
}

func labelled(i int, pairs ...string) rollout.Pod {
	p, set := ready(i), map[string]string{}
	for j := 0; j < len(pairs); j += 2 {
		set[pairs[j]] = pairs[j+1]
	}
	p.Labels = podstate.MakeLabelSet(set)
	return p
}

// T14: Pods without any of the keys come first. Then the first key decides, and the
// number at the end of its value, the largest first.
func TestOrderPriority(t *testing.T) {
	u := update{MaxUnavailable: share("100"), PriorityStrategy: byOrder("ord", "zone")}
	q := queue(strategy(u),
		labelled(1, "zone", "z9"), labelled(2, "ord", "web-2"), labelled(3, "ord", "web-10", "zone", "z1"),
		labelled(4, "ord", "none"), labelled(5), labelled(6, "ord", "99999999999999999999"), labelled(7, "zone", "z10"))
	expect(t, "in order", q.Next(100, 0),
		"pod-000005", "pod-000006", "pod-000003", "pod-000002", "pod-000004", "pod-000007", "pod-000001")
}

func TestWeightPriority(t *testing.T) {
	weight := func(w int32, key string) appsv1beta1.UpdatePriorityWeightTerm {
		return appsv1beta1.UpdatePriorityWeightTerm{Weight: w, MatchSelector: *matching(key, "yes")}
	}
	u := update{MaxUnavailable: share("100"), PriorityStrategy: &appsv1beta1.UpdatePriorityStrategy{
		WeightPriority: []appsv1beta1.UpdatePriorityWeightTerm{weight(50, "a"), weight(30, "b"), weight(30, "c")},
	}}
	q := queue(strategy(u), labelled(1), labelled(2, "b", "yes"), labelled(3, "a", "yes"), labelled(4, "b", "yes", "c", "yes"))
	expect(t, "in order", q.Next(100, 0), "pod-000004", "pod-000003", "pod-000002", "pod-000001")
}

// Three Pods of six have the label. The last of them goes to the end; the others and
// those without the label are in two groups of one and two.
func TestScatter(t *testing.T) {
	u := update{MaxUnavailable: share("100"), ScatterStrategy: scatterOver("zone", "a")}
	q := queue(strategy(u),
		labelled(1, "zone", "a"), labelled(2, "zone", "a"), labelled(3, "zone", "a"),
		labelled(4), labelled(5, "zone", "b"), labelled(6))
	expect(t, "in order", q.Next(100, 0),
		"pod-000001", "pod-000004", "pod-000005", "pod-000002", "pod-000006", "pod-000003")
}

// Pods that are updated already count for the frequency of a value, so that a rollout spreads
// its remaining Pods as it spread the first ones.
func TestScatterCountsAllMatchedPods(t *testing.T) {
	done := labelled(9, "zone", "a")
	done.Way = inplace.Current
	alsoDone := done
	alsoDone.UID, alsoDone.Name = "uid-also", "also"
	u := update{MaxUnavailable: share("100"), ScatterStrategy: scatterOver("zone", "a")}
	q := rollout.NewQueue()
	if again := q.SetStrategy(strategy(u)); !again {
		t.Errorf("the caller does not learn that the strategy needs all Pods")
	}
	for _, p := range []rollout.Pod{
		done, alsoDone, labelled(1, "zone", "a"), labelled(2, "zone", "a"), labelled(3, "zone", "a"),
		labelled(4), labelled(5), labelled(6), labelled(7),
	} {
		q.Set(p)
	}
	q.SetCounts(9, 2)
	// Of all matched Pods, 5-1 have the label and 4 do not: groups of one and one. Of the Pods
	// that wait, 3-1 have it: two groups, and two Pods without it before them.
	expect(t, "in order", q.Next(100, 0),
		"pod-000004", "pod-000005", "pod-000001", "pod-000006", "pod-000002", "pod-000007", "pod-000003")
}

// If there are as many values as Pods, the cost is that of the most frequent 64.
func TestScatterOverManyValuesIsBounded(t *testing.T) {
	var pods []rollout.Pod
	for i := range 20_000 {
		pods = append(pods, labelled(i, "host", fmt.Sprint(i/2)))
	}
	u := update{MaxUnavailable: share("100%"), ScatterStrategy: scatterOver("host", "*")}
	if got := len(queue(strategy(u), pods...).Next(len(pods), 0)); got != len(pods) {
		t.Errorf("%d of %d Pods are taken", got, len(pods))
	}
}
