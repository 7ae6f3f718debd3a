package rollout

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Strategy is a SidecarSet's update strategy, compiled. It is immutable and may be
// shared. With a problem, no Pod is updated: a rollout whose limits cannot be read must
// not run without limits.
type Strategy struct {
	problem        error // names the part that cannot be read by its path in the SidecarSet, and what to write instead
	off            Rule  // NotUpdate, Paused or NoRule
	selector       labels.Selector
	partition      share
	maxUnavailable share
	minReady       int64 // seconds
	weights        []weight
	orderedKeys    []string
	scatterKeys    []string // of source.ScatterStrategy, each once
	// source holds the parts of the update strategy that depend on labels.
	source appsv1beta1.SidecarSetUpdateStrategy
}

type weight struct {
	selector labels.Selector
	weight   int64
}

// NewStrategy compiles the update strategy and the annotations of a SidecarSet. One that is being
// deleted is paused.
func NewStrategy(set *appsv1beta1.SidecarSet) *Strategy {
	s, err := compile(&set.Spec.UpdateStrategy, set.Annotations)
	switch {
	case err != nil:
		return &Strategy{problem: err}
	case set.DeletionTimestamp != nil && s.off == NoRule:
		s.off = Paused
	}
	return s
}

func compile(u *appsv1beta1.SidecarSetUpdateStrategy, annotations map[string]string) (*Strategy, error) {
	s := &Strategy{source: appsv1beta1.SidecarSetUpdateStrategy{
		Selector: u.Selector, PriorityStrategy: u.PriorityStrategy, ScatterStrategy: u.ScatterStrategy,
	}}
	switch u.Type {
	case appsv1beta1.RollingUpdateSidecarSetStrategyType, "":
	case appsv1beta1.NotUpdateSidecarSetStrategyType:
		return &Strategy{off: NotUpdate}, nil
	default:
		return nil, fmt.Errorf("spec.updateStrategy.type %q is not known; write RollingUpdate or NotUpdate", u.Type)
	}
	if u.Paused {
		s.off = Paused
	}
	var err error
	if s.partition, err = shareOf(u.Partition, 0); err != nil {
		return nil, fmt.Errorf("spec.updateStrategy.partition %w", err)
	}
	if s.maxUnavailable, err = shareOf(u.MaxUnavailable, 1); err != nil {
		return nil, fmt.Errorf("spec.updateStrategy.maxUnavailable %w", err)
	}
	if s.minReady, err = minReadyOf(annotations); err != nil {
		return nil, err
	}
	if u.Selector != nil {
		if s.selector, err = metav1.LabelSelectorAsSelector(u.Selector); err != nil {
			return nil, fmt.Errorf("spec.updateStrategy.selector cannot be used: %w", err)
		}
	}
	if u.PriorityStrategy != nil {
		if err := s.setPriority(u.PriorityStrategy); err != nil {
			return nil, err
		}
	}
	for _, term := range u.ScatterStrategy {
		if !slices.Contains(s.scatterKeys, term.Key) {
			s.scatterKeys = append(s.scatterKeys, term.Key)
		}
	}
	return s, nil
}

// setPriority takes over a priority strategy. If it has both lists, which admission
// refuses, weights win as they do in OpenKruise.
func (s *Strategy) setPriority(p *appsv1beta1.UpdatePriorityStrategy) error {
	for i := range p.WeightPriority {
		term := &p.WeightPriority[i]
		selector, err := metav1.LabelSelectorAsSelector(&term.MatchSelector)
		if err != nil {
			return fmt.Errorf("spec.updateStrategy.priorityStrategy.weightPriority[%d].matchSelector cannot be used: %w", i, err)
		}
		s.weights = append(s.weights, weight{selector, int64(term.Weight)})
	}
	if len(s.weights) > 0 {
		return nil
	}
	for _, term := range p.OrderPriority {
		s.orderedKeys = append(s.orderedKeys, term.OrderedKey)
	}
	return nil
}

// MinReadySeconds is how long a Pod has to be Ready to be available; 0 if the strategy cannot be read, or
// updates no Pod.
func (s *Strategy) MinReadySeconds() int64 { return s.minReady }

// defaultMinReady is how long a Pod has to be Ready to be available, in seconds.
const defaultMinReady = 30

func minReadyOf(annotations map[string]string) (int64, error) {
	text, ok := annotations[appsv1beta1.AnnotationMinReadySeconds]
	if !ok {
		return defaultMinReady, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("annotation %s %q is not a number of seconds; write a whole number such as 30, or remove it", appsv1beta1.AnnotationMinReadySeconds, text)
	}
	return n, nil
}

// Selects reports whether updateStrategy.selector lets Pods with these labels be updated.
func (s *Strategy) Selects(set labels.Set) bool { return s.selector == nil || s.selector.Matches(set) }

// MinReady is how long a Pod has to be Ready to be available.
func (s *Strategy) MinReady() time.Duration { return time.Duration(s.minReady) * time.Second }

// Updates reports whether the operator updates running Pods, at times at least.
func (s *Strategy) Updates() bool { return s.off != NotUpdate }

// IsPaused reports whether updateStrategy.paused is true.
func (s *Strategy) IsPaused() bool { return s.off == Paused }

func (s *Strategy) scatters() bool { return len(s.scatterKeys) > 0 }

// LooksAtLabels reports whether anything depends on the labels of Pods.
func (s *Strategy) LooksAtLabels() bool {
	return s.selector != nil || len(s.weights) > 0 || len(s.orderedKeys) > 0 || s.scatters()
}

// LooksLike reports whether two strategies have the same parts that depend on labels.
func (s *Strategy) LooksLike(other *Strategy) bool { return reflect.DeepEqual(s.source, other.source) }

// share is a number of Pods, or a percentage of the matched Pods.
type share struct {
	value   int64
	percent bool
}

func shareOf(v *intstr.IntOrString, absent int64) (share, error) {
	switch {
	case v == nil:
		return share{value: absent}, nil
	case v.Type == intstr.Int && v.IntVal >= 0:
		return share{value: int64(v.IntVal)}, nil
	case v.Type == intstr.String:
		if digits, ok := strings.CutSuffix(v.StrVal, "%"); ok {
			if n, err := strconv.ParseUint(digits, 10, 31); err == nil {
				return share{value: int64(n), percent: true}, nil
			}
		}
	}
	return share{}, fmt.Errorf("%q is not a number of Pods; write a whole number such as 5, or a percentage such as 10%%", v.String())
}

// of returns the share of n Pods; percentages are rounded up.
func (s share) of(n int) int {
	if !s.percent {
		return int(min(s.value, math.MaxInt32))
	}
	return int((s.value*int64(n) + 99) / 100)
}

// Kept is the number of n matched Pods that partition excludes from the update. A
// percentage below 100 leaves at least one Pod to update if there are several.
func (s *Strategy) Kept(n int) int {
	kept := min(s.partition.of(n), n)
	if s.partition.percent && s.partition.value < 100 && kept == n && n > 1 {
		return n - 1
	}
	return kept
}

// Allowed is the number of n matched Pods that may be unavailable at the same time because of the
// operator: maxUnavailable. A percentage above 0 is at least one Pod.
func (s *Strategy) Allowed(n int) int { return s.maxUnavailable.of(n) }
