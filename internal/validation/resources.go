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
)

func validateResources(r *corev1.ResourceRequirements, path place) {
	validateQuantities(r.Limits, path.Child("limits"))
	validateQuantities(r.Requests, path.Child("requests"))
	validateRequestsFit(r, path)
	names := sets.KeySet(r.Limits).Union(sets.KeySet(r.Requests))
	if !names.HasAny(corev1.ResourceCPU, corev1.ResourceMemory) && slices.ContainsFunc(names.UnsortedList(), isHugePages) {
		path.forbidden("huge pages need cpu or memory beside them; add one")
	}
	validateClaims(r.Claims, path.Child("claims"))
}

// validateClaims checks which of the Pod's claims the sidecar uses, and that it names no device
// twice. Not every Pod has the claims.
func validateClaims(claims []corev1.ResourceClaim, path place) {
	seen, named := sets.New[corev1.ResourceClaim](), sets.New[string]()
	for i, c := range claims {
		at := path.Index(i)
		requireText(c.Name, at.Child("name"), "name an element of the Pod's spec.resourceClaims")
		validateText(&c.Request, at.Child("request"), validation.IsDNS1123Label)
		if all := (corev1.ResourceClaim{Name: c.Name}); seen.HasAny(c, all) || c.Request == "" && named.Has(c.Name) {
			at.duplicate(c.Name, "another element has this claim or this request of it; remove one")
		}
		seen.Insert(c)
		named.Insert(c.Name)
	}
}

func validateQuantities(list corev1.ResourceList, path place) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity, at := list[name], path.Key(string(name))
		validateResourceName(string(name), at)
		if quantity.Sign() < 0 {
			at.invalid(quantity.String(), "must be 0 or more; correct or remove it")
		}
		if !isOvercommittable(name) && !isHugePages(name) && quantity.MilliValue()%1000 != 0 {
			at.invalid(quantity.String(), "must be a whole number of devices; correct it")
		}
		if isHugePages(name) && !isMultiple(quantity, strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix)) {
			at.invalid(quantity.String(), "must be a multiple of the page's size; correct it")
		}
	}
}

// ordinary are the resources without a domain that a container may ask for.
var ordinary = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)

func validateResourceName(name string, path place) {
	if problems := validation.IsQualifiedName(name); len(problems) > 0 {
		path.invalidBy(name, problems)
		return
	}
	switch {
	case !strings.Contains(name, "/"):
		if !ordinary.Has(corev1.ResourceName(name)) && !isHugePages(corev1.ResourceName(name)) {
			path.invalid(name, "is not a resource of containers; use cpu, memory, ephemeral-storage, hugepages-<size> or <domain>/<name>")
			return
		}
	case strings.Contains(name, corev1.ResourceDefaultNamespacePrefix):
	case strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix), len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) > 0:
		path.invalid(name, "is not the name of an extended resource; use <domain>/<name>, without the prefix requests.")
	}
}

// validateRequestsFit compares requests with limits. An absent request is filled
// in from the limit, an absent limit is not filled in.
func validateRequestsFit(r *corev1.ResourceRequirements, path place) {
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request, at := r.Requests[name], path.Child("requests").Key(string(name))
		limit, limited := r.Limits[name]
		switch {
		case !limited && !isOvercommittable(name):
			path.Child("limits").Key(string(name)).required("this resource cannot be overcommitted; set a limit equal to the request")
		case limited && !isOvercommittable(name) && request.Cmp(limit) != 0:
			at.invalid(request.String(), fmt.Sprintf("must be equal to the limit of %s, this resource cannot be overcommitted; change one of them", limit.String()))
		case limited && request.Cmp(limit) > 0:
			at.invalid(request.String(), fmt.Sprintf("must be less than or equal to the limit of %s; change one of them", limit.String()))
		}
	}
}

// isOvercommittable reports whether a node may promise more than it has.
func isOvercommittable(name corev1.ResourceName) bool {
	native := !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
	return native && !isHugePages(name)
}

func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// isMultiple reports whether q is a multiple of the size of a page.
func isMultiple(q resource.Quantity, size string) bool {
	page, err := resource.ParseQuantity(size)
	return err == nil && page.Value() > 0 && q.Value()%page.Value() == 0
}

func validateResizePolicy(policies []corev1.ContainerResizePolicy, path place) {
	seen := sets.New[corev1.ResourceName]()
	for i, p := range policies {
		at := path.Index(i)
		validateUnique(p.ResourceName, seen, at.Child("resourceName"), "this resource has a policy already; remove one")
		requireValue(p.ResourceName, at.Child("resourceName"), corev1.ResourceCPU, corev1.ResourceMemory)
		requireValue(p.RestartPolicy, at.Child("restartPolicy"), corev1.NotRequired, corev1.RestartContainer)
	}
}
