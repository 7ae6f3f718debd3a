package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// update is the update strategy of a SidecarSet under test.
type update = appsv1beta1.SidecarSetUpdateStrategy

// share parses what a user writes for a number of Pods; "-" is absent.
func share(text string) *intstr.IntOrString {
	if text == "-" {
		return nil
	}
	v := intstr.Parse(text)
	return &v
}

// strategy has min-ready-seconds 0.
func strategy(u update) *rollout.Strategy { return withMinReady(u, "0") }

func withMinReady(u update, seconds string) *rollout.Strategy {
	set := &appsv1beta1.SidecarSet{Spec: appsv1beta1.SidecarSetSpec{UpdateStrategy: u}}
	set.Annotations = map[string]string{appsv1beta1.AnnotationMinReadySeconds: seconds}
	return rollout.NewStrategy(set)
}

// noon is when Decide is asked.
const noon = 1_900_000_000

// ready returns an outdated Pod that is available. Pods with lower numbers come first
// in the default order.
func ready(i int) *rollout.Pod {
	return &rollout.Pod{Verdict: inplace.Verdict{Method: inplace.Images}, Summary: &podstate.Summary{
		UID: types.UID(fmt.Sprintf("uid-%06d", i)), Namespace: podstate.MakeNamespace("default"), Name: fmt.Sprintf("pod-%06d", i),
		Active: true, Ready: true, Since: uint32(1_800_000_000 - i), Order: podstate.Order{Assigned: true, Phase: podstate.Running, Created: 1e9},
	}}
}

func labelled(i int, pairs ...string) *rollout.Pod {
	p, set := ready(i), map[string]string{}
	for j := 0; j < len(pairs); j += 2 {
		set[pairs[j]] = pairs[j+1]
	}
	p.Summary.Labels = podstate.MakeLabelSet(set)
	return p
}

// updated returns a Pod that was available and that the rollout updated long ago: available again, or not
// Ready since.
func updated(i int, back bool) *rollout.Pod {
	p := ready(i)
	p.Verdict.Method, p.Updated = inplace.Current, true
	p.Written = podstate.Written{At: 1_700_000_000, Carried: 1_700_000_000, Started: 1_700_000_001, Up: true}
	p.Summary.Ready, p.Summary.Since = back, p.Written.Started
	return p
}

// availablePods returns updated Pods that are available.
func availablePods(n int) (pods []*rollout.Pod) {
	for i := range n {
		pods = append(pods, updated(1_000_000+i, true))
	}
	return pods
}

// decide decides at noon.
func decide(s *rollout.Strategy, pods ...*rollout.Pod) rollout.Plan {
	for _, p := range pods {
		p.Traits = s.TraitsOf(p.Summary.Labels.Labels())
	}
	return rollout.Decide(rollout.Input{Strategy: s, Status: rollout.Begun, Stored: true, Now: noon}, pods)
}

// names returns the numbers of Pods.
func names(pods []*rollout.Pod) (all []string) {
	for _, p := range pods {
		all = append(all, strings.TrimLeft(strings.TrimPrefix(p.Summary.Name, "pod-"), "0"))
	}
	return all
}

func expect(t *testing.T, plan rollout.Plan, want ...string) {
	t.Helper()
	if got := names(plan.Write); !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
}

// The default order: each Pod comes before the next by one of its steps.
func TestDefaultOrder(t *testing.T) {
	steps := []func(*podstate.Summary){
		func(p *podstate.Summary) { p.Since = 0 },
		func(p *podstate.Summary) { p.Since = 900 },
		func(p *podstate.Summary) { p.Order.Restarts = 2 },
		func(p *podstate.Summary) { p.Order.Restarts, p.Order.NativeRestarts = 1, 9 },
		func(p *podstate.Summary) { p.Order.NativeRestarts = 1 },
		func(p *podstate.Summary) { p.Order.Created = 0 },
		func(p *podstate.Summary) { p.Order.Created = 700 },
		func(p *podstate.Summary) {},
		func(p *podstate.Summary) {}, // by UID
	}
	pods := availablePods(100)
	var want []string
	for i, step := range steps {
		p := ready(i + 1)
		p.Summary.Since, p.Summary.Order = 800, podstate.Order{Assigned: true, Phase: podstate.Running, Created: 600}
		step(p.Summary)
		pods = append(pods, p)
		want = append(want, fmt.Sprint(i+1))
	}
	slices.Reverse(pods)
	expect(t, decide(strategy(update{MaxUnavailable: share("1000")}), pods...), want...)
}

// Of Pods that are not Ready, those that an update took down come first. Then come pending ones. Those
// without a node come last of all.
func TestOrderOfPodsThatAreNotReady(t *testing.T) {
	pods := availablePods(100)
	for i := range 5 {
		p := ready(5 - i)
		p.Summary.Ready, p.Summary.Order = false, podstate.Order{Assigned: i < 3, Phase: podstate.Phase(max(0, 2-i))}
		if i == 4 {
			p.Summary.Order = podstate.Order{Assigned: true, Phase: podstate.Running}
			p.Written = podstate.Written{At: 1_700_000_000}
		}
		pods = append(pods, p)
	}
	expect(t, decide(strategy(update{}), pods...), "1", "3", "4", "5", "2")
}

func byOrder(keys ...string) *appsv1beta1.UpdatePriorityStrategy {
	p := &appsv1beta1.UpdatePriorityStrategy{}
	for _, key := range keys {
		p.OrderPriority = append(p.OrderPriority, appsv1beta1.UpdatePriorityOrderTerm{OrderedKey: key})
	}
	return p
}

// T14: Pods without any of the keys come first. Then the first key decides, and the
// number at the end of its value, the largest first.
func TestOrderPriority(t *testing.T) {
	u := update{MaxUnavailable: share("1000"), PriorityStrategy: byOrder("ord", "zone")}
	expect(t, decide(strategy(u), append(availablePods(100),
		labelled(1, "zone", "z9"), labelled(2, "ord", "web-2"), labelled(3, "ord", "web-10", "zone", "z1"),
		labelled(4, "ord", "none"), labelled(5), labelled(6, "ord", "99999999999999999999"), labelled(7, "zone", "z10"))...),
		"5", "6", "3", "2", "4", "7", "1")
}

func TestWeightPriority(t *testing.T) {
	weight := func(w int32, key string) appsv1beta1.UpdatePriorityWeightTerm {
		return appsv1beta1.UpdatePriorityWeightTerm{Weight: w, MatchSelector: metav1.LabelSelector{MatchLabels: map[string]string{key: "yes"}}}
	}
	u := update{MaxUnavailable: share("1000"), PriorityStrategy: &appsv1beta1.UpdatePriorityStrategy{
		WeightPriority: []appsv1beta1.UpdatePriorityWeightTerm{weight(50, "a"), weight(30, "b"), weight(30, "c")},
	}}
	expect(t, decide(strategy(u), append(availablePods(100), labelled(1), labelled(2, "b", "yes"), labelled(3, "a", "yes"), labelled(4, "b", "yes", "c", "yes"))...),
		"4", "3", "2", "1")
}

func scatterOver(key, value string) []appsv1beta1.UpdateScatterTerm {
	return []appsv1beta1.UpdateScatterTerm{{Key: key, Value: value}}
}

// Of the Pods that wait, three have the label. The last of them goes to the end. Of all Pods, as
// many have it as not, so the others follow one another in turn.
func TestScatter(t *testing.T) {
	u := update{MaxUnavailable: share("100%"), ScatterStrategy: scatterOver("zone", "a")}
	pods := []*rollout.Pod{labelled(1, "zone", "a"), labelled(2, "zone", "a"), labelled(3, "zone", "a"), labelled(4), labelled(5, "zone", "b"), labelled(6)}
	for i := range 6 {
		p := updated(10+i, true)
		if i < 3 {
			p.Summary.Labels = pods[0].Summary.Labels
		}
		pods = append(pods, p)
	}
	expect(t, decide(strategy(u), pods...), "4", "1", "5", "2", "6", "3")
}

// If there are as many values as Pods, the cost is that of the most frequent 64.
func TestScatterOverManyValuesIsBounded(t *testing.T) {
	var pods []*rollout.Pod
	for i := range 20_000 {
		pods = append(pods, labelled(i, "host", fmt.Sprint(i/2)))
	}
	if plan := decide(strategy(update{MaxUnavailable: share("100%"), ScatterStrategy: scatterOver("host", "*")}), pods...); len(plan.Write) != 1 {
		t.Errorf("%d Pods are written at the beginning, want one", len(plan.Write))
	}
}

// The table of batch sizes in the specification of OpenKruise's controller, apart from proof.
func TestBatchSizes(t *testing.T) {
	tests := []struct {
		n, updated, back          int
		partition, maxUnavailable string
		want                      int
	}{
		{100, 30, 26, "-", "10", 6},
		{1000, 300, 260, "-", "10%", 60},
		{1000, 300, 250, "-", "5%", 0},
		{100, 30, 27, "-", "100", 70},
		{1000, 800, 760, "180", "100", 20},
		{1000, 800, 760, "18%", "100", 20},
		{1000, 800, 760, "100", "100", 60},
		{1000, 800, 760, "10%", "100", 60},
		{5, 0, 0, "-", "5%", 1},
		{5, 0, 0, "99%", "5", 1},
		{5, 0, 0, "1%", "5", 4},
		// The roundings that the text has in addition to the table.
		{5, 0, 0, "100%", "5", 0},
		{1, 0, 0, "99%", "1", 0},
		{5, 0, 0, "7", "5", 0},
		{5, 0, 0, "0", "-", 1},
		{5, 0, 0, "-", "0", 0},
		{5, 0, 0, "-", "0%", 0},
		{5, 0, 0, "-", "200%", 5},
	}
	for _, tc := range tests {
		t.Run(fmt.Sprintf("%d of %d/%d with partition %s and maxUnavailable %s", tc.n, tc.back, tc.updated, tc.partition, tc.maxUnavailable), func(t *testing.T) {
			var pods []*rollout.Pod
			for i := range tc.n {
				if i < tc.updated {
					pods = append(pods, updated(i, i < tc.back))
				} else {
					pods = append(pods, ready(i))
				}
			}
			plan := decide(strategy(update{Partition: share(tc.partition), MaxUnavailable: share(tc.maxUnavailable)}), pods...)
			if got := max(0, min(plan.Budget-plan.BudgetUsed, plan.Outdated-plan.Kept)); got != tc.want {
				t.Errorf("%d Pods can be taken by budget and partition, want %d: %+v", got, tc.want, plan.Numbers)
			}
			if want := max(0, min(tc.want, max(1, tc.back)-(tc.updated-tc.back))); len(plan.Write) != want {
				t.Errorf("wrote %d Pods, want %d", len(plan.Write), want)
			}
		})
	}
}

// T13: a strategy that cannot be read stops the rollout, and says why.
func TestAnInvalidStrategyStopsTheRollout(t *testing.T) {
	badSelector := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	tests := map[string]struct {
		strategy *rollout.Strategy
		says     string
	}{
		"a partition in words":              {strategy(update{Partition: share("half")}), "partition"},
		"a number as text, OpenKruise's 5%": {strategy(update{Partition: &intstr.IntOrString{Type: intstr.String, StrVal: "5"}}), "partition"},
		"a negative partition":              {strategy(update{Partition: share("-1")}), "partition"},
		"a negative percentage":             {strategy(update{MaxUnavailable: share("-1%")}), "maxUnavailable"},
		"a fraction":                        {strategy(update{MaxUnavailable: share("0.5%")}), "maxUnavailable"},
		"a percentage beyond counting":      {strategy(update{MaxUnavailable: share("99999999999999999999%")}), "maxUnavailable"},
		"an unknown type":                   {strategy(update{Type: "Recreate"}), "type"},
		"a selector that does not compile":  {strategy(update{Selector: badSelector}), "selector"},
		"a weight that does not compile":    {strategy(update{PriorityStrategy: &appsv1beta1.UpdatePriorityStrategy{WeightPriority: []appsv1beta1.UpdatePriorityWeightTerm{{MatchSelector: *badSelector}}}}), "weightPriority[0]"},
		"seconds in words":                  {withMinReady(update{}, "ten"), "min-ready-seconds"},
		"negative seconds":                  {withMinReady(update{}, "-1"), "min-ready-seconds"},
		"no seconds":                        {withMinReady(update{}, ""), "min-ready-seconds"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			down := ready(1)
			down.Summary.Ready, down.Resets = false, true
			plan := decide(tc.strategy, ready(0), down)
			expect(t, plan)
			if plan.Rule != rollout.Invalid || plan.Who != nil || len(plan.Reset) > 0 {
				t.Errorf("Decide() = %+v, want the rule Invalid", plan)
			}
			if problem := plan.Problem; problem == nil || !strings.Contains(problem.Error(), tc.says) {
				t.Errorf("the problem is %v, want one about %s", problem, tc.says)
			}
		})
	}
}
