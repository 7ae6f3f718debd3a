package inject

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
	"github.com/sidecarset/operator/internal/jsonread"
)

// resourcesPolicy computes the resources of one sidecar. It is compiled once;
// any number of goroutines may use it at the same time.
type resourcesPolicy struct {
	place   ResourcesError // of the policy, such as spec.containers[0].resourcesPolicy, without a cause
	target  *regexp.Regexp
	combine func(total *resource.Quantity, q resource.Quantity) // adds q to total, or takes the larger one
	exprs   []resourceExpr
	own     map[string]any // what the sidecar's resources hold apart from limits and requests
	err     error          // why the policy can serve no Pod
}

// resourceExpr is one expression of the policy; those that are empty are left out.
type resourceExpr struct {
	list     string // "limits" or "requests"
	variable expr.Variable
	compiled *expr.Expr
}

const (
	limits   = "limits"
	requests = "requests"
)

// ResourcesError says that the resources of a sidecar cannot be computed, and
// what to change.
type ResourcesError struct {
	SidecarSet, Container string
	Field                 string // spec.containers[0].resourcesPolicy.resourcesExpr.limits.cpu
	Err                   error
}

func (e *ResourcesError) Error() string {
	return fmt.Sprintf("SidecarSet %q: computing the resources of container %q: %s: %v", e.SidecarSet, e.Container, e.Field, e.Err)
}

func (e *ResourcesError) Unwrap() error { return e.Err }

// SidecarSets implements Refusal.
func (e *ResourcesError) SidecarSets() []string { return []string{e.SidecarSet} }

// compileResourcesPolicy prepares the policy of a sidecar. Of the resources that the user
// wrote next to it, limits and requests are dropped; claims, and members that are newer than
// our types, are injected. A policy that cannot be used (it was stored while no webhook
// checked it, or before the rule existed) is compiled as well, and refuses each Pod with
// the reason. The policies of one SidecarSet share targets.
func compileResourcesPolicy(place ResourcesError, policy *appsv1beta1.ResourcesPolicy, targets *expr.Targets, resources map[string]any) *resourcesPolicy {
	p := &resourcesPolicy{place: place, own: maps.Clone(resources)}
	delete(p.own, limits)
	delete(p.own, requests)
	p.err = p.compile(policy, targets)
	return p
}

func (p *resourcesPolicy) compile(policy *appsv1beta1.ResourcesPolicy, targets *expr.Targets) (err error) {
	switch mode := policy.TargetContainersMode; mode {
	case appsv1beta1.TargetContainersModeSum:
		p.combine = addUp
	case appsv1beta1.TargetContainersModeMax:
		p.combine = keepLarger
	default:
		return p.error(".targetContainersMode", fmt.Errorf("%q is neither sum nor max; correct it", mode))
	}
	if p.target, err = targets.Compile(policy.TargetContainersNameRegex); err != nil {
		return p.error(".targetContainersNameRegex", fmt.Errorf("%w; correct it", err))
	}
	return p.compileExprs(&policy.ResourcesExpr)
}

func (p *resourcesPolicy) compileExprs(texts *appsv1beta1.ResourcesExpr) error {
	add := func(list string, variable expr.Variable, text string) error {
		if text == "" {
			return nil
		}
		compiled, err := expr.ParseStored(text, variable)
		if err != nil {
			return p.error(exprField(list, variable), fmt.Errorf("failed to parse expression %q: %w", text, err))
		}
		p.exprs = append(p.exprs, resourceExpr{list, variable, compiled})
		return nil
	}
	var errs []error
	if l := texts.Limits; l != nil {
		errs = append(errs, add(limits, expr.CPU, l.CPU), add(limits, expr.Memory, l.Memory))
	}
	if r := texts.Requests; r != nil {
		errs = append(errs, add(requests, expr.CPU, r.CPU), add(requests, expr.Memory, r.Memory))
	}
	return errors.Join(errs...)
}

func addUp(total *resource.Quantity, q resource.Quantity) { total.Add(q) }

func keepLarger(total *resource.Quantity, q resource.Quantity) {
	if total.IsZero() || q.Cmp(*total) > 0 {
		*total = q
	}
}

func exprField(list string, variable expr.Variable) string {
	return ".resourcesExpr." + list + "." + string(variable)
}

func (p *resourcesPolicy) error(field string, err error) error {
	return &ResourcesError{p.place.SidecarSet, p.place.Container, p.place.Field + field, err}
}

// containerResources are the resources of a container, or of the Pod as a whole. An amount is
// nil where nothing is set.
type containerResources struct {
	name     string
	Limits   map[string]*amount `json:"limits,omitempty"`
	Requests map[string]*amount `json:"requests,omitempty"`
}

// amount is a quantity that the Pod's creator wrote, and that is cheap to compute with:
// UnmarshalJSON refuses a long one. The API server has not validated it yet.
type amount struct{ resource.Quantity }

// UnmarshalJSON refuses a long quantity before it is parsed.
func (a *amount) UnmarshalJSON(text []byte) error {
	if !jsonread.IsShortQuantity(strings.Trim(string(text), `"`)) {
		return jsonread.ErrLongQuantity
	}
	return a.Quantity.UnmarshalJSON(text)
}

// parseResources reads the resources of a container, which may be absent.
func parseResources(view *ContainerView) (containerResources, error) {
	resources := containerResources{name: view.Name}
	if len(view.Resources) > 0 {
		if err := utiljson.Unmarshal(view.Resources, &resources); err != nil {
			return containerResources{}, fmt.Errorf("reading the resources of container %s: %w", quoted(view.Name), err)
		}
	}
	return resources, nil
}

// budget is what the Pod has as a whole of the resources of these names.
func (s *selected) budget(names []string) (budget containerResources, err error) {
	if s.pod.Spec.Resources == nil {
		return budget, nil
	}
	var r jsonread.Reader
	r.Reset(s.pod.Spec.Resources)
	budget = containerResources{Limits: map[string]*amount{}, Requests: map[string]*amount{}}
	r.Object([]string{limits, requests}, func(list string) {
		r.Object(names[:min(len(names), mostNames)], func(name string) {
			start := r.Offset()
			r.Skip()
			if text := r.Since(start); text != nil {
				one := new(amount)
				if err := one.UnmarshalJSON(text); err != nil {
					r.Fail(err)
				}
				budget.list(list)[name] = one
			}
		})
	})
	if err := r.Err(); err != nil {
		return budget, fmt.Errorf("reading spec.resources of the Pod: %w", err)
	}
	return budget, nil
}

// mostNames is how many names are read of spec.resources. API servers take cpu, memory and the
// sizes of huge pages.
const mostNames = 64

func (r *containerResources) list(name string) map[string]*amount {
	if name == limits {
		return r.Limits
	}
	return r.Requests
}

// compute computes limits and requests of the sidecar. The containers are the Pod's native
// sidecars and then its containers. The policy chooses by name among those that are not
// excluded. Excluded are all containers that a SidecarSet injects, whether the Pod has them
// already or not. The error is a *ResourcesError, or several joined, or a *FitError.
//
// A limit that one of the chosen containers lacks is not set. A request that a
// container lacks counts as 0; the API server has set it to the limit before the
// webhook is called. A request of 0 is set. An amount that all of the chosen containers
// lack is that of the Pod as a whole, if the Pod has one.
func (p *resourcesPolicy) compute(pod *containerResources, containers []containerResources, excluded func(name string) bool) (*containerResources, error) {
	if p.err != nil {
		return nil, p.err
	}
	chosen := p.choose(containers, excluded)
	if len(chosen) == 0 {
		return nil, p.error(".targetContainersNameRegex", fmt.Errorf("no containers match the regex pattern %q: "+
			"change it, or change the SidecarSet's selector so that it leaves this Pod out", p.target))
	}
	out := &containerResources{Limits: map[string]*amount{}, Requests: map[string]*amount{}}
	for _, e := range p.exprs {
		total, complete := p.total(pod, chosen, e)
		if e.list == limits && !complete {
			continue
		}
		q, err := e.compiled.Eval(total)
		if err != nil {
			return nil, p.error(exprField(e.list, e.variable), fmt.Errorf("failed to evaluate the expression with %s = %s: %w", e.variable, total.String(), err))
		}
		out.list(e.list)[string(e.variable)] = &amount{q}
	}
	for _, v := range []expr.Variable{expr.CPU, expr.Memory} {
		limit, request := out.Limits[string(v)], out.Requests[string(v)]
		if limit != nil && request != nil && request.Cmp(limit.Quantity) > 0 {
			return nil, &FitError{SidecarSet: p.place.SidecarSet, Container: p.place.Container, Field: p.place.Field + exprField(requests, v),
				Problem: fmt.Sprintf("for this Pod it gives a request of %s, above the limit of %s from limits.%s", request, limit, v),
				Remedy:  "correct one of the two expressions"}
		}
	}
	return out, nil
}

// resources are those of the sidecar as they go into the Pod. If they have no members, leave
// them out.
func (p *resourcesPolicy) resources(computed *containerResources) map[string]any {
	out := make(map[string]any, len(p.own)+2)
	maps.Copy(out, p.own)
	for _, list := range []string{limits, requests} {
		if amounts := computed.list(list); len(amounts) > 0 {
			out[list] = amounts
		}
	}
	return out
}

// choose returns the containers that the policy is about. It ignores a name that is too
// long for a container.
func (p *resourcesPolicy) choose(containers []containerResources, excluded func(name string) bool) []*containerResources {
	var chosen []*containerResources
	for i := range containers {
		if c := &containers[i]; len(c.name) <= maxContainerName && p.target.MatchString(c.name) && !excluded(c.name) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// total combines the amounts of the containers, or takes that of the Pod. complete says that
// each container sets one.
func (p *resourcesPolicy) total(pod *containerResources, containers []*containerResources, e resourceExpr) (total resource.Quantity, complete bool) {
	set, name := 0, string(e.variable)
	for _, c := range containers {
		if q := c.list(e.list)[name]; q != nil {
			p.combine(&total, q.Quantity)
			set++
		}
	}
	if set > 0 {
		return total, set == len(containers)
	}
	whole := cmp.Or(pod.list(e.list)[name], pod.Limits[name]) // a missing request is the limit
	if whole == nil {
		return total, false
	}
	return whole.Quantity, true
}
