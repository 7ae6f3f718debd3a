package validation

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

// validateUpdateStrategy checks how running Pods are updated. If they are not updated, the
// operator uses no part of the strategy, and no part is checked.
func validateUpdateStrategy(spec *appsv1beta1.SidecarSetSpec, path place) {
	s := &spec.UpdateStrategy
	if s.Type != appsv1beta1.RollingUpdateSidecarSetStrategyType {
		return
	}
	if s.Selector != nil {
		if divides := s.Partition != nil && (s.Partition.Type == intstr.String || s.Partition.IntVal != 0); divides {
			path.Child("selector").invalid("", "must not be set together with partition; remove one of them")
		}
		validateSelector(s.Selector, path.Child("selector"))
	}
	validateShare(s.Partition, path.Child("partition"))
	validateShare(s.MaxUnavailable, path.Child("maxUnavailable"))
	if s.PriorityStrategy != nil {
		validatePriority(s.PriorityStrategy, path.Child("priorityStrategy"))
	}
	validateScatter(s.ScatterStrategy, path.Child("scatterStrategy"))
}

// isPercentage reports whether text is a percentage that Kubernetes can compute with.
func isPercentage(text string) bool {
	_, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
	return len(validation.IsValidPercent(text)) == 0 && err == nil
}

// validateShare checks a number of Pods or a percentage.
func validateShare(share *intstr.IntOrString, path place) {
	switch {
	case share == nil:
	case share.Type == intstr.String && !isPercentage(share.StrVal):
		path.invalid(share.StrVal, "must be a whole number or a percentage such as 10%; correct it")
	case share.Type == intstr.Int && share.IntVal < 0:
		path.invalid(share.IntVal, "must be 0 or more; correct or remove it")
	}
}

func validatePriority(p *appsv1beta1.UpdatePriorityStrategy, path place) {
	if len(p.OrderPriority) > 0 && len(p.WeightPriority) > 0 {
		path.Child("weightPriority").forbidden("must not be set together with orderPriority; remove one of them")
	}
	for i, term := range p.OrderPriority {
		requireText(term.OrderedKey, path.Child("orderPriority").Index(i).Child("orderedKey"), "name a label whose value orders Pods")
	}
	for i := range p.WeightPriority {
		term, at := &p.WeightPriority[i], path.Child("weightPriority").Index(i)
		if term.Weight < 0 || term.Weight > 100 {
			at.Child("weight").invalid(term.Weight, "must be from 0 to 100; correct it")
		}
		if selectors.IsEmpty(&term.MatchSelector) {
			at.Child("matchSelector").required("say which Pods the weight is about; add matchLabels or matchExpressions")
		} else {
			validateSelector(&term.MatchSelector, at.Child("matchSelector"))
		}
	}
}

func validateScatter(terms []appsv1beta1.UpdateScatterTerm, path place) {
	seen := sets.New[appsv1beta1.UpdateScatterTerm]()
	for i, term := range terms {
		requireText(term.Key, path.Index(i).Child("key"), "name a label whose Pods are spread over the update")
		if seen.Has(term) {
			path.Index(i).duplicate(fmt.Sprintf("%s:%s", term.Key, term.Value), "another term is the same; remove one")
		}
		seen.Insert(term)
	}
}

// validateRevision checks which recorded revision new Pods receive.
func validateRevision(revision *appsv1beta1.SidecarSetInjectRevision, recorded bool, path place) {
	if revision == nil {
		return
	}
	switch {
	case revision.RevisionName == nil && revision.CustomVersion == nil:
		path.invalid("", "names no revision; set revisionName or customVersion, or remove it")
	case !recorded && revision.RevisionName != nil:
		path.Child("revisionName").invalid(*revision.RevisionName, "cannot find ControllerRevision of this SidecarSet; name one that exists")
	case !recorded:
		path.Child("customVersion").invalid(*revision.CustomVersion, "cannot find ControllerRevision of this SidecarSet with this version; name one that was recorded")
	}
	if revision.Policy != "" {
		validateChoice(revision.Policy, path.Child("policy"), appsv1beta1.AlwaysSidecarSetInjectRevisionPolicy, appsv1beta1.PartialSidecarSetInjectRevisionPolicy)
	}
}
