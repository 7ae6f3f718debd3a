package validation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/validation"
)

func agent() *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("log").Container("agent", "agent:v1")
}

// refused are the fields and details because of which a SidecarSet is refused.
func refused(errs field.ErrorList) string {
	var lines []string
	for _, err := range errs {
		lines = append(lines, err.Field+": "+err.Detail)
	}
	return strings.Join(lines, "\n")
}

// The mutating webhook sets these members, but it did not see every stored SidecarSet.
func TestMembersThatWereNeverDefaulted(t *testing.T) {
	set := agent().PatchAnnotation("Retain", "a", "b").With("transferEnv", []any{map[string]any{
		"envName": "x", "sourceContainerNameFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.labels['a']"}}}}).Obj()
	env := validation.Environment{Whitelist: validation.Whitelist{Content: allowAll}}
	if errs := validation.Create(set, env); len(errs) > 0 {
		t.Fatal(errs)
	}
	set.Spec.PatchPodMetadata[0].PatchPolicy = ""
	set.Spec.Containers[0].TransferEnv[0].SourceContainerNameFrom.FieldRef.APIVersion = ""
	set.Name, set.GenerateName = "a-b1", "a.b"
	const want = "metadata.generateName: must consist of letters, digits and '-' only; choose another name\n" +
		"spec.containers[0].transferEnv[0].sourceContainerNameFrom.fieldRef.apiVersion: set it to v1\n" +
		"spec.patchPodMetadata[0].patchPolicy: use Retain, Overwrite or MergePatchJson"
	if got := refused(validation.Create(set, env)); got != want {
		t.Errorf("refused for\n%s\nwant\n%s", got, want)
	}
	old := agent().Obj()
	old.Spec.Containers[0].UpgradeStrategy.UpgradeType = "" // rule 41
	if errs := validation.Update(agent().Obj(), old, validation.Environment{}); len(errs) > 0 {
		t.Errorf("an upgradeType that was never set: %v", errs)
	}
}

func TestRule35Whitelist(t *testing.T) {
	const (
		notFound = "spec.patchPodMetadata: whitelist not found: no rule applies to this SidecarSet; ask an administrator to add one to key SidecarSet_PatchPodMetadata_WhiteList of ConfigMap ours/kruise-configuration"
		unusable = "spec.patchPodMetadata: the whitelist cannot be used: "
		none     = "spec.patchPodMetadata[0].annotations[example.com/key]: no rule of the whitelist allows this annotation"
	)
	// byDefault is with OpenKruise's gate SidecarSetPatchPodMetadataDefaultsAllowed, the operator's
	// flag --patch-pod-metadata-allowed: where no rule is about the SidecarSet, everything is allowed.
	tests := map[string]struct{ content, want, byDefault string }{
		"there is none":                      {``, notFound, ""},
		"it allows the key":                  {`{"rules":[{"allowedAnnotationKeyExprs":["x","^example.com/"]}]}`, "", ""},
		"it allows a part of the key":        {`{"rules":[{"allowedAnnotationKeyExprs":["ple"]}]}`, "", ""},
		"another rule allows it":             {`{"rules":[{"allowedAnnotationKeyExprs":["x"]},{"selector":{"matchLabels":{"team":"a"}},"allowedAnnotationKeyExprs":["key"]}]}`, "", ""},
		"it does not allow the key":          {`{"rules":[{"allowedAnnotationKeyExprs":["^x"]}]}`, none, none},
		"its rules are about others":         {`{"rules":[{"selector":{"matchLabels":{"team":"b"}},"allowedAnnotationKeyExprs":["."]}]}`, notFound, ""},
		"it has no rules":                    {`{}`, notFound, ""},
		"a rule has no expression":           {`{"rules":[{}]}`, notFound, ""},
		"it is no JSON":                      {`rules:`, unusable + "reading it as JSON: invalid character 'r'", unusable},
		"an expression is none":              {`{"rules":[{"allowedAnnotationKeyExprs":["("]}]}`, unusable + "rules[0].allowedAnnotationKeyExprs: error parsing regexp", unusable},
		"a selector is none":                 {`{"rules":[{"selector":{"matchExpressions":[{"key":"a","operator":"Like"}]}}]}`, unusable + `rules[0].selector: "Like" is not a valid label selector operator`, unusable},
		"members in another case are read":   {`{"Rules":[{"allowedannotationkeyexprs":["."]}]}`, "", ""},
		"an expression about others is none": {`{"rules":[{"selector":{"matchLabels":{"team":"b"}},"allowedAnnotationKeyExprs":["("]},{"allowedAnnotationKeyExprs":["."]}]}`, "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := agent().PatchAnnotation("Retain", "example.com/key", "v").Obj()
			set.Labels = map[string]string{"team": "a"}
			for byDefault, want := range map[bool]string{false: tc.want, true: tc.byDefault} {
				env := validation.Environment{Whitelist: validation.Whitelist{Namespace: "ours", Content: tc.content, AllowedByDefault: byDefault}}
				if got := refused(validation.Create(set, env)); (got == "") != (want == "") || !strings.HasPrefix(got, want) {
					t.Errorf("allowed by default %v: refused for %q, want %q", byDefault, got, want)
				}
			}
		})
	}
}

// What an API server refuses is kept like what the rules refuse.
func TestAnUpdateKeepsWhatTheAPIServerRefusesOfBoth(t *testing.T) {
	of := func(path, detail string) *field.Error {
		return &field.Error{Type: field.ErrorTypeInvalid, Field: path, BadValue: field.OmitValueType{}, Detail: detail}
	}
	old, updated := agent(), fixtures.SidecarSet("log").Container("first", "first:v1").Container("agent", "agent:v1").Map()
	const key = "].resources.limits[a[0].b]"
	now := field.ErrorList{of("spec.containers[1"+key, "too bad"), of("spec.containers[0"+key, "too bad"), of("spec.containers[1"+key, "worse")}
	worse, kept := validation.Keep(now, updated, old.Obj(), validation.Environment{Object: old.Map()}, field.ErrorList{of("spec.containers[0"+key, "too bad")})
	if diff := cmp.Diff([]field.ErrorList{now[1:], now[:1]}, []field.ErrorList{worse, kept}); diff != "" {
		t.Errorf("worse, and kept (-want +got):\n%s", diff)
	}
}

// A SidecarSet that anybody has made up may have the names of all others a thousand times.
func TestConflictsThatAreKeptAreBounded(t *testing.T) {
	set := agent().Obj()
	for range 1000 {
		set.Spec.Containers = append(set.Spec.Containers, set.Spec.Containers[0])
		set.Spec.InitContainers = append(set.Spec.InitContainers, set.Spec.Containers[0])
	}
	others := make([]*appsv1beta1.SidecarSet, 200)
	for i := range others {
		others[i] = fixtures.SidecarSet(fmt.Sprint("other-", i)).Container("agent", "agent:v1").Obj()
	}
	found := validation.FindConflicts(set, others)
	env := validation.Environment{Conflicts: found}
	none := validation.Environment{Base: &metav1.ObjectMeta{}}
	if errs, without := validation.Create(set, env), validation.Create(set, none); len(errs)-len(without) != 1000 {
		t.Errorf("%d refusals are kept, want 1000", len(errs)-len(without))
	}
	if warned, without := validation.Warnings(set, env), validation.Warnings(set, none); len(warned)-len(without) != 1000 {
		t.Errorf("%d warnings are kept, want 1000", len(warned)-len(without))
	}
	if names := found.Refusing(); len(names) != len(others) {
		t.Errorf("%d SidecarSets refuse it, want %d", len(names), len(others))
	}
}
