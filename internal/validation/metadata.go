package validation

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

var nameFormat = regexp.MustCompile(`^[a-zA-Z0-9-]+$`)

// maxNameLength leaves room for a revision's suffix, and makes the name usable
// as a label value.
const maxNameLength = 63

func validateMetadata(meta *metav1.ObjectMeta, path place) {
	path.add(sorted(apivalidation.ValidateObjectMeta(meta, false, validateName, path.Path))...)
}

// validateName returns what is wrong with a name, or with the prefix of a name that the API
// server is about to generate.
func validateName(name string, _ bool) (problems []string) {
	if !nameFormat.MatchString(name) {
		problems = append(problems, "must consist of letters, digits and '-' only; choose another name")
	}
	if len(name) > maxNameLength {
		problems = append(problems, fmt.Sprintf("must be no more than %d characters; choose a shorter name", maxNameLength))
	}
	return problems
}

func validateCanary(set *appsv1beta1.SidecarSet, base *metav1.ObjectMeta, metadata, spec place) {
	name := appsv1beta1.BaseOfCanary(set.Annotations)
	if name == "" {
		return
	}
	at := annotationOf(metadata, appsv1beta1.AnnotationBase)
	switch {
	case name == set.Name:
		at.invalid(name, "a canary cannot be its own base; name the SidecarSet that it replaces")
	case base == nil:
		at.invalid(name, "no SidecarSet of this name exists; create the base first or correct the name")
	case appsv1beta1.BaseOfCanary(base.Annotations) != "":
		at.invalid(name, fmt.Sprintf("is itself a canary, of %s; name a SidecarSet that is none", appsv1beta1.BaseOfCanary(base.Annotations)))
	}
	if set.Spec.UpdateStrategy.Type != appsv1beta1.NotUpdateSidecarSetStrategyType {
		spec.Child("updateStrategy", "type").invalid(set.Spec.UpdateStrategy.Type, "a canary does not update running Pods; set updateStrategy.type NotUpdate")
	}
}

func validateCanaryUpdate(set, old *appsv1beta1.SidecarSet, metadata place) {
	name, before := appsv1beta1.BaseOfCanary(set.Annotations), old.Annotations[appsv1beta1.AnnotationBase]
	if name != "" && name != before {
		annotationOf(metadata, appsv1beta1.AnnotationBase).invalid(name,
			fmt.Sprintf("a canary's base is immutable (it was %q); delete the SidecarSet and create it with its new base", before))
	}
}

// validateAnnotations refuses values of the operator's annotations that would have the same
// effect as no annotation, or that would stop every rollout.
func validateAnnotations(annotations map[string]string, metadata place) {
	choice := func(key string, supported ...string) {
		if text, ok := annotations[key]; ok {
			validateChoice(text, annotationOf(metadata, key), supported...)
		}
	}
	number := func(key string, least, most int64, problem string) {
		text, ok := annotations[key]
		if n, err := strconv.ParseInt(text, 10, 32); ok && (err != nil || n < least || n > most) {
			annotationOf(metadata, key).invalid(text, problem)
		}
	}
	choice(appsv1beta1.AnnotationFailurePolicy, string(admissionregistrationv1.Fail), string(admissionregistrationv1.Ignore))
	number(appsv1beta1.AnnotationTimeoutSeconds, 1, appsv1beta1.MaxTimeoutSeconds,
		fmt.Sprintf("must be a whole number of seconds from 1 to %d", appsv1beta1.MaxTimeoutSeconds))
	choice(appsv1beta1.AnnotationEnforce, "true", "false")
	choice(appsv1beta1.AnnotationNewPods, appsv1beta1.DefaultNewPods, appsv1beta1.StableNewPods)
	choice(appsv1beta1.AnnotationDefaultContainer, appsv1beta1.DefaultContainerApp)
	number(appsv1beta1.AnnotationMinReadySeconds, 0, math.MaxInt32, `must be a whole number of seconds; write for example "30", or remove it`)
}

func annotationOf(metadata place, key string) place { return metadata.Child("annotations").Key(key) }
