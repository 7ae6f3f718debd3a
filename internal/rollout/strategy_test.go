package rollout_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
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

func strategy(u update) *rollout.Strategy {
	return rollout.NewStrategy(&appsv1beta1.SidecarSet{Spec: appsv1beta1.SidecarSetSpec{UpdateStrategy: u}})
}

func firstBatch(u update, n string) *rollout.Strategy {
	return rollout.NewStrategy(&appsv1beta1.SidecarSet{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{appsv1beta1.AnnotationFirstBatch: n}},
		Spec:       appsv1beta1.SidecarSetSpec{UpdateStrategy: u},
	})
}

// The table of batch sizes in the specification of OpenKruise's controller.
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
			q := rollout.NewQueue()
			q.SetStrategy(strategy(update{Partition: share(tc.partition), MaxUnavailable: share(tc.maxUnavailable)}))
			q.SetCounts(tc.n, tc.back)
			for i := range tc.n {
				p := ready(i)
				if i < tc.updated {
					p.Way, p.InFlight = inplace.Current, i >= tc.back
				}
				q.Set(p)
			}
			if got := len(q.Next(tc.n, 0)); got != tc.want {
				t.Errorf("took %d Pods, want %d", got, tc.want)
			}
		})
	}
}

// T13: a strategy that cannot be read stops the rollout, and the report has the reason.
func TestAnInvalidStrategyStopsTheRollout(t *testing.T) {
	badSelector := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	tests := map[string]struct {
		strategy *rollout.Strategy
		says     string
	}{
		"a partition in words":                 {strategy(update{Partition: share("half")}), "partition"},
		"a number as text, OpenKruise's 5%":    {strategy(update{Partition: &intstr.IntOrString{Type: intstr.String, StrVal: "5"}}), "partition"},
		"a negative partition":                 {strategy(update{Partition: share("-1")}), "partition"},
		"a negative percentage":                {strategy(update{MaxUnavailable: share("-1%")}), "maxUnavailable"},
		"a fraction":                           {strategy(update{MaxUnavailable: share("0.5%")}), "maxUnavailable"},
		"a percentage beyond counting":         {strategy(update{MaxUnavailable: share("99999999999999999999%")}), "maxUnavailable"},
		"an unknown type":                      {strategy(update{Type: "Recreate"}), "type"},
		"a selector that does not compile":     {strategy(update{Selector: badSelector}), "selector"},
		"a weight that does not compile":       {strategy(update{PriorityStrategy: &appsv1beta1.UpdatePriorityStrategy{WeightPriority: []appsv1beta1.UpdatePriorityWeightTerm{{MatchSelector: *badSelector}}}}), "weightPriority[0]"},
		"a first batch in words":               {firstBatch(update{}, "one"), "first-batch"},
		"a first batch that is a percentage":   {firstBatch(update{}, "1%"), "first-batch"},
		"a first batch of less than no Pods":   {firstBatch(update{}, "-1"), "first-batch"},
		"a first batch that is the empty text": {firstBatch(update{}, ""), "first-batch"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			q := rollout.NewQueue()
			q.SetStrategy(tc.strategy)
			q.SetCounts(2, 0)
			q.Set(ready(0))
			broken := ready(1)
			broken.Ready = false
			q.Set(broken)
			if takes := q.Next(10, 0); len(takes) != 0 {
				t.Errorf("took %v", takes)
			}
			if r := q.Report(); r.Limit != rollout.Invalid || r.Problem == nil || !strings.Contains(r.Problem.Error(), tc.says) {
				t.Errorf("Report() = %+v, want the limit %s with a problem about %s", r, rollout.Invalid, tc.says)
			}
		})
	}
}

func TestNoPodIsTakenWhilePausedOrUnderNotUpdate(t *testing.T) {
	for limit, u := range map[rollout.Limit]update{
		rollout.Paused:    {Paused: true},
		rollout.NotUpdate: {Type: appsv1beta1.NotUpdateSidecarSetStrategyType, Partition: share("not even looked at")},
	} {
		q := rollout.NewQueue()
		q.SetStrategy(strategy(u))
		q.SetCounts(1, 0)
		q.Set(ready(0))
		if takes := q.Next(10, 0); len(takes) != 0 {
			t.Errorf("%s: took %v", limit, takes)
		}
		if got := q.Report().Limit; got != limit {
			t.Errorf("the limit is %s, want %s", got, limit)
		}
		q.SetStrategy(strategy(update{}))
		if takes := q.Next(10, 0); len(takes) != 1 {
			t.Errorf("%s: took %v once it is in force", limit, takes)
		}
	}
}
