// Package lint judges SidecarSets in files as the webhook would if they were created, and says
// where in the files the problems are. It has no rule of its own, and asks no cluster: what
// Kubernetes says of containers, volumes and pull secrets it does not know.
package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/validation"
)

// Severity says what a cluster does about a Finding.
type Severity string

// The values of Severity.
const (
	Error     Severity = "error"     // the SidecarSet is refused
	Warning   Severity = "warning"   // it is stored, with this warning
	Unchecked Severity = "unchecked" // the files cannot tell; a cluster may refuse it
)

// Finding is one problem.
type Finding struct {
	File       string   `json:"file"`
	Line       int      `json:"line"`
	Column     int      `json:"column"`
	Severity   Severity `json:"severity"`
	SidecarSet string   `json:"sidecarSet"`
	// Field is where the problem is, such as spec.containers[0].image; "" for the whole object.
	Field string `json:"field,omitempty"`
	// Message says what is wrong, and what to do.
	Message string `json:"message"`
}

// Input is what is known apart from the SidecarSets themselves.
type Input struct {
	SidecarSets []*manifest.Object
	Revisions   []*appsv1.ControllerRevision
	// Whitelist is the administrator's; nil if it is not known.
	Whitelist *validation.Whitelist
	// ExcludedNamespaces are never injected.
	ExcludedNamespaces []string
}

// subject is one SidecarSet.
type subject struct {
	*manifest.Object
	set      *hub.SidecarSet // nil if it cannot be read
	findings []Finding
}

// Run returns the findings by the order of the SidecarSets, and then of the lines.
func Run(in Input) []Finding {
	var subjects []*subject
	var all []*appsv1beta1.SidecarSet
	for i, o := range in.SidecarSets {
		s := read(o, i)
		if subjects = append(subjects, s); s.set != nil {
			all = append(all, s.set.Set)
		}
	}
	findings := []Finding{}
	for _, s := range subjects {
		if s.set != nil {
			s.judge(in, all)
		}
		slices.SortStableFunc(s.findings, func(a, b Finding) int { return a.Line - b.Line })
		findings = append(findings, s.findings...)
	}
	return findings
}

// read fills in defaults and converts, as the cluster does before it validates. n numbers it.
func read(o *manifest.Object, n int) *subject {
	s := &subject{Object: o}
	if o.Namespace != "" {
		s.add(Warning, "metadata.namespace", "a SidecarSet has no namespace, so kubectl and API servers drop it; remove it")
	}
	text, err := json.Marshal(o.AsStored(n))
	if err != nil {
		s.add(Error, "", err.Error())
		return s
	}
	sent, err := hub.Read(text)
	if err != nil {
		s.add(Error, "apiVersion", err.Error())
		return s
	}
	s.unknownMembers(text)
	sent.Default()
	s.set, err = sent.Hub()
	if member, ok := errors.AsType[*hub.MemberError](err); ok {
		s.add(Error, member.Path, member.Err.Error()+"; correct it")
	} else if err != nil {
		s.add(Error, "", err.Error())
	}
	return s
}

var unknownField = regexp.MustCompile(`^unknown field "(.+)"$`)

// unknownMembers finds members that this build does not know. Those of containers and volumes may
// be newer than the build; kubectl refuses the others.
func (s *subject) unknownMembers(text []byte) {
	var into any = &appsv1beta1.SidecarSet{}
	if s.APIVersion == appsv1alpha1.GroupVersion.String() {
		into = &appsv1alpha1.SidecarSet{}
	}
	strict, _ := kjson.UnmarshalStrict(text, into) // Hub says where another error is
	for _, err := range strict {
		found := unknownField.FindStringSubmatch(err.Error())
		if found == nil {
			continue
		}
		path := found[1]
		if ofPods.MatchString(path) {
			s.add(Warning, path, "is unknown to this build of the plugin; if it is no mistake, kubectl apply --dry-run=server says whether the cluster knows it")
		} else {
			s.add(Error, path, "is unknown, so that kubectl refuses it and API servers drop it; correct or remove it")
		}
	}
}

var ofPods = regexp.MustCompile(`^spec\.(containers|initContainers|volumes)\[`)

// judge applies the rules of the webhook.
func (s *subject) judge(in Input, all []*appsv1beta1.SidecarSet) {
	set := s.set.Set
	errs := validation.Bounds(set, nil, s.set.Object, nil)
	var warnings []string
	if len(errs) == 0 {
		env := s.environment(in, all)
		errs = validation.Create(set, env)
		warnings = slices.Concat(validation.Warnings(set, env), validation.Ignored(s.Value))
	}
	for _, err := range errs {
		s.add(Error, err.Field, err.ErrorBody())
	}
	s.warn(warnings)
}

// environment gathers what the rules need. If the files cannot tell, the rule is left out.
func (s *subject) environment(in Input, all []*appsv1beta1.SidecarSet) validation.Environment {
	set := s.set.Set
	env := validation.Environment{
		Conflicts: validation.FindConflicts(set, all), Stored: all, Object: s.set.Object,
		ExcludedNamespaces: in.ExcludedNamespaces, Recorded: true,
	}
	unchecked := func(field, what string) {
		s.add(Unchecked, field, what+" is not in the files; add its manifest, or use kubectl apply --dry-run=server")
	}
	if name := appsv1beta1.BaseOfCanary(set.Annotations); name != "" {
		env.Base = &metav1.ObjectMeta{Name: name}
		if at := slices.IndexFunc(all, func(other *appsv1beta1.SidecarSet) bool { return other.Name == name }); at >= 0 {
			env.Base = &all[at].ObjectMeta
		} else {
			unchecked("metadata.annotations["+appsv1beta1.AnnotationBase+"]", "SidecarSet "+name)
		}
	}
	if reference, names := revision.ReferenceOf(set.Spec.InjectionStrategy.Revision); names {
		own := slices.DeleteFunc(slices.Clone(in.Revisions), func(r *appsv1.ControllerRevision) bool { return r.Labels[appsv1beta1.LabelSidecarSetName] != set.Name })
		if len(own) == 0 {
			unchecked("spec.injectionStrategy.revision", "the ControllerRevision")
		} else {
			env.Recorded = revision.NewHistory(own, revision.Owner{Name: set.Name, UID: set.UID}).Choose(reference) != nil
		}
	}
	if in.Whitelist != nil {
		env.Whitelist = *in.Whitelist
	} else if env.Whitelist.AllowedByDefault = true; len(set.Spec.PatchPodMetadata) > 0 {
		unchecked("spec.patchPodMetadata", "the whitelist, ConfigMap "+validation.WhitelistConfigMap+",")
	}
	return env
}

// warn adds warnings, which begin with a field.
func (s *subject) warn(lines []string) {
	for _, line := range lines {
		path, message, _ := strings.Cut(line, ": ")
		if !slices.ContainsFunc(s.findings, func(f Finding) bool { return f.Field == path && f.Severity == Error }) {
			s.add(Warning, path, message)
		}
	}
}

func (s *subject) add(severity Severity, path, message string) {
	line, column := s.Place(s.written(path))
	s.findings = append(s.findings, Finding{
		File: s.File(), Line: line, Column: column, Severity: severity, SidecarSet: s.name(), Field: path, Message: message,
	})
}

// name is the name, or what it begins with.
func (s *subject) name() string {
	if prefix := (&unstructured.Unstructured{Object: s.Value}).GetGenerateName(); s.Name == "" && prefix != "" {
		return prefix + "*"
	}
	return s.Name
}

// written is where the user has a field of v1beta1: two have other places in v1alpha1.
func (s *subject) written(path string) string {
	spec, _ := s.Value["spec"].(map[string]any)
	if s.APIVersion != appsv1alpha1.GroupVersion.String() {
		return path
	}
	switch {
	case strings.HasPrefix(path, "spec.namespaceSelector") && spec["namespace"] != nil:
		return "spec.namespace"
	case path == "spec.customVersion":
		return fmt.Sprintf("metadata.labels[%s]", appsv1beta1.LabelCustomVersion)
	}
	return path
}
