package validation

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

// validateUpdateStrategy checks how running Pods follow; where they do not,
// nothing of it is used and nothing is checked.
func validateUpdateStrategy(spec *appsv1beta1.SidecarSetSpec, path *field.Path) field.ErrorList {
	s := &spec.UpdateStrategy
	if s.Type != appsv1beta1.RollingUpdateSidecarSetStrategyType {
		return nil
	}
	var errs field.ErrorList
	if s.Selector != nil {
		if divides := s.Partition != nil && (s.Partition.Type == intstr.String || s.Partition.IntVal != 0); divides {
			errs = append(errs, field.Invalid(path.Child("selector"), "", "may not stand beside partition; remove one of them"))
		}
		errs = append(errs, validateSelector(s.Selector, path.Child("selector"))...)
	}
	errs = append(errs, validateShare(s.Partition, path.Child("partition"))...)
	errs = append(errs, validateShare(s.MaxUnavailable, path.Child("maxUnavailable"))...)
	if s.PriorityStrategy != nil {
		errs = append(errs, validatePriority(s.PriorityStrategy, path.Child("priorityStrategy"))...)
	}
	return append(errs, validateScatter(s.ScatterStrategy, path.Child("scatterStrategy"))...)
}

var percentage = regexp.MustCompile(`^[0-9]+%$`)

// validateShare checks a number of Pods or a percentage.
func validateShare(share *intstr.IntOrString, path *field.Path) field.ErrorList {
	switch {
	case share == nil:
		return nil
	case share.Type == intstr.String && !percentage.MatchString(share.StrVal):
		return field.ErrorList{field.Invalid(path, share.StrVal, "must be a whole number or a percentage such as 10%; correct it")}
	case share.Type == intstr.Int:
		return validateNotNegative(int64(share.IntVal), path)
	}
	return nil
}

func validatePriority(p *appsv1beta1.UpdatePriorityStrategy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(p.OrderPriority) > 0 && len(p.WeightPriority) > 0 {
		errs = append(errs, field.Forbidden(path.Child("weightPriority"), "may not stand beside orderPriority; remove one of them"))
	}
	for i, term := range p.OrderPriority {
		errs = append(errs, requireText(term.OrderedKey, path.Child("orderPriority").Index(i).Child("orderedKey"), "name a label whose value orders Pods")...)
	}
	for i := range p.WeightPriority {
		term, at := &p.WeightPriority[i], path.Child("weightPriority").Index(i)
		if term.Weight < 0 || term.Weight > 100 {
			errs = append(errs, field.Invalid(at.Child("weight"), term.Weight, "must be from 0 to 100; correct it"))
		}
		if selectors.IsEmpty(&term.MatchSelector) {
			errs = append(errs, field.Required(at.Child("matchSelector"), "say which Pods the weight is about; add matchLabels or matchExpressions"))
		} else {
			errs = append(errs, validateSelector(&term.MatchSelector, at.Child("matchSelector"))...)
		}
	}
	return errs
}

func validateScatter(terms []appsv1beta1.UpdateScatterTerm, path *field.Path) field.ErrorList {
	seen := sets.New[appsv1beta1.UpdateScatterTerm]()
	var errs field.ErrorList
	for i, term := range terms {
		errs = append(errs, requireText(term.Key, path.Index(i).Child("key"), "name a label whose Pods are spread over the update")...)
		if seen.Has(term) {
			errs = append(errs, duplicate(path.Index(i), fmt.Sprintf("%s:%s", term.Key, term.Value), "another term is the same; remove one"))
		}
		seen.Insert(term)
	}
	return errs
}

// validateRevision checks which recorded revision new Pods receive.
func validateRevision(revision *appsv1beta1.SidecarSetInjectRevision, recorded bool, path *field.Path) field.ErrorList {
	if revision == nil {
		return nil
	}
	var errs field.ErrorList
	switch {
	case revision.RevisionName == nil && revision.CustomVersion == nil:
		errs = append(errs, field.Invalid(path, "", "names no revision; set revisionName or customVersion, or remove it"))
	case !recorded && revision.RevisionName != nil:
		errs = append(errs, field.Invalid(path.Child("revisionName"), *revision.RevisionName, "cannot find ControllerRevision of this SidecarSet; name one that exists"))
	case !recorded:
		errs = append(errs, field.Invalid(path.Child("customVersion"), *revision.CustomVersion, "cannot find ControllerRevision of this SidecarSet with this version; name one that was recorded"))
	}
	return append(errs, validateValue(revision.Policy, path.Child("policy"), appsv1beta1.AlwaysSidecarSetInjectRevisionPolicy, appsv1beta1.PartialSidecarSetInjectRevisionPolicy)...)
}
