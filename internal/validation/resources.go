package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateResources(r *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	errs := validateQuantities(r.Limits, path.Child("limits"))
	errs = append(errs, validateQuantities(r.Requests, path.Child("requests"))...)
	errs = append(errs, validateRequestsFit(r, path)...)
	if hugePagesAlone(r) {
		errs = append(errs, field.Forbidden(path, "huge pages need cpu or memory beside them; add one"))
	}
	for i := range r.Claims {
		errs = append(errs, field.Forbidden(path.Child("claims").Index(i), "a sidecar has no claims: they belong to Pods (spec.resourceClaims); remove it"))
	}
	return errs
}

func validateQuantities(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity, at := list[name], path.Key(string(name))
		errs = append(errs, validateResourceName(string(name), at)...)
		if quantity.Sign() < 0 {
			errs = append(errs, field.Invalid(at, quantity.String(), "must be 0 or more; correct or remove it"))
		}
		if !isOvercommittable(name) && !isHugePages(name) && quantity.MilliValue()%1000 != 0 {
			errs = append(errs, field.Invalid(at, quantity.String(), "must be a whole number of devices; correct it"))
		}
		if isHugePages(name) && !isMultiple(quantity, strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix)) {
			errs = append(errs, field.Invalid(at, quantity.String(), "must be a multiple of the page's size; correct it"))
		}
	}
	return errs
}

// ordinary are the resources without a domain that a container may ask for.
var ordinary = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)

func validateResourceName(name string, path *field.Path) field.ErrorList {
	if problems := validation.IsQualifiedName(name); len(problems) > 0 {
		return invalid(path, name, problems)
	}
	switch {
	case !strings.Contains(name, "/"):
		if !ordinary.Has(corev1.ResourceName(name)) && !isHugePages(corev1.ResourceName(name)) {
			return field.ErrorList{field.Invalid(path, name, "is no resource of containers; use cpu, memory, ephemeral-storage, hugepages-<size> or <domain>/<name>")}
		}
	case strings.Contains(name, corev1.ResourceDefaultNamespacePrefix):
	case strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix), len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) > 0:
		return field.ErrorList{field.Invalid(path, name, "is no name of an extended resource; use <domain>/<name>, without requests. in front")}
	}
	return nil
}

// validateRequestsFit compares requests with limits. An absent request is filled
// in from the limit, an absent limit is not filled in.
func validateRequestsFit(r *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request, at := r.Requests[name], path.Child("requests").Key(string(name))
		limit, limited := r.Limits[name]
		switch {
		case !limited && !isOvercommittable(name):
			errs = append(errs, field.Required(path.Child("limits").Key(string(name)), "this resource cannot be overcommitted; set a limit equal to the request"))
		case limited && !isOvercommittable(name) && request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(at, request.String(), fmt.Sprintf("must be equal to the limit of %s, this resource cannot be overcommitted; change one of them", limit.String())))
		case limited && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(at, request.String(), fmt.Sprintf("must be less than or equal to the limit of %s; change one of them", limit.String())))
		}
	}
	return errs
}

// isOvercommittable reports whether a node may promise more than it has.
func isOvercommittable(name corev1.ResourceName) bool {
	native := !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
	return native && !isHugePages(name)
}

func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func hugePagesAlone(r *corev1.ResourceRequirements) bool {
	huge, ordinary := false, false
	for _, list := range []corev1.ResourceList{r.Limits, r.Requests} {
		for name := range list {
			huge = huge || isHugePages(name)
			ordinary = ordinary || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		}
	}
	return huge && !ordinary
}

// isMultiple reports whether q is a multiple of the size of a page.
func isMultiple(q resource.Quantity, size string) bool {
	page, err := resource.ParseQuantity(size)
	return err == nil && page.Value() > 0 && q.Value()%page.Value() == 0
}

func validateResizePolicy(policies []corev1.ContainerResizePolicy, path *field.Path) field.ErrorList {
	seen := sets.New[corev1.ResourceName]()
	var errs field.ErrorList
	for i, p := range policies {
		at := path.Index(i)
		if seen.Has(p.ResourceName) {
			errs = append(errs, duplicate(at.Child("resourceName"), p.ResourceName, "this resource has a policy already; remove one"))
		}
		seen.Insert(p.ResourceName)
		errs = append(errs, requireValue(p.ResourceName, at.Child("resourceName"), corev1.ResourceCPU, corev1.ResourceMemory)...)
		errs = append(errs, requireValue(p.RestartPolicy, at.Child("restartPolicy"), corev1.NotRequired, corev1.RestartContainer)...)
	}
	return errs
}
