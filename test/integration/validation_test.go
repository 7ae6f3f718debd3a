package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/random"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podtemplate"
	"github.com/sidecarset/operator/internal/validation"
	"github.com/sidecarset/operator/test/deploy"
)

type object = map[string]any

// What the API server says about the SidecarSets in files: internal/fixtures/sidecarsets/README.md.
func TestSidecarSetsInFiles(t *testing.T) {
	author := newUser(t, "files", "cluster-admin")
	allow := sync.OnceFunc(func() { allowAnnotations(t) })
	fixtures.RunJudgedByServer(t, serverMinor(t), func(t *testing.T, c *fixtures.Judged) (said fixtures.Said) {
		if hub.NameOf(c.Manifest) == "log" { // after the samples, one of which nobody has allowed
			allow()
		}
		err := author.Create(t.Context(), &unstructured.Unstructured{Object: c.Manifest}, client.DryRunAll, client.FieldValidation(metav1.FieldValidationWarn))
		said.Warned = strings.Split(author.told(), "\n")
		var status apierrors.APIStatus
		if errors.As(err, &status) && status.Status().Details != nil {
			for _, cause := range status.Status().Details.Causes {
				said.Refused = append(said.Refused, cause.Field+": "+cause.Message)
			}
		}
		if err != nil {
			said.Refused = append(said.Refused, err.Error())
		}
		return said
	})
}

// allowAnnotations lets SidecarSets set annotations.
func allowAnnotations(t *testing.T) {
	t.Helper()
	whitelist := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: "kruise-configuration"},
		Data:       map[string]string{"SidecarSet_PatchPodMetadata_WhiteList": `{"rules": [{"allowedAnnotationKeyExprs": [".*"]}]}`},
	}
	create(t, whitelist)
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), whitelist); err != nil {
			t.Error(err)
		}
	})
}

// wantAccepted is how many SidecarSets of the generator must pass validation before the test
// ends. triedAtMost is how many it tries at most.
const (
	wantAccepted = 200
	triedAtMost  = 20 * wantAccepted
)

// If the webhook accepts a SidecarSet, the API server accepts an injected Pod.
func TestTheAPIServerAcceptsPodsOfEveryValidSidecarSet(t *testing.T) {
	g := random.New(3)
	accepted := 0
	for tried := 0; accepted < wantAccepted && tried < triedAtMost; tried++ {
		set := fixtures.Stored(asJSON(t, g.SidecarSet()))
		if refused(t, set) {
			continue
		}
		accepted++
		if err := createWith(t, set); err != nil {
			t.Errorf("accepted, yet its Pod is refused: %v\n%s", err, asText(t, set["spec"]))
		}
	}
	if needServer(t, 37); accepted < wantAccepted { // older ones refuse more
		t.Errorf("%d SidecarSets were accepted, want %d", accepted, wantAccepted)
	}
}

// refused says whether the rules or the API server refuse a SidecarSet, as the webhook does. It
// asks without the webhook, whose questions are bounded.
func refused(t *testing.T, set object) bool {
	t.Helper()
	if len(validation.Create(typedSet(t, set), validation.Environment{Object: set})) > 0 {
		return true
	}
	verdict, err := askAbout(t, podtemplate.New(&hub.SidecarSet{Object: set, Set: typedSet(t, set)}))
	if err != nil {
		t.Fatal(err)
	}
	return len(verdict.Refused) > 0
}

// askAbout asks the API server.
func askAbout(t *testing.T, question podtemplate.Question) (podtemplate.Verdict, error) {
	t.Helper()
	config := rest.CopyConfig(cluster.Config())
	config.WarningHandler, config.QPS = rest.NoWarnings{}, -1
	server, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	result := server.RESTClient().Post().AbsPath("/api/v1/namespaces", deploy.Namespace, "podtemplates").
		Param("dryRun", podtemplate.DryRun).Param("fieldValidation", podtemplate.FieldValidation).
		SetHeader("Content-Type", "application/json").Body(question.Body()).Do(t.Context())
	var warnings []string
	for _, warning := range result.Warnings() {
		warnings = append(warnings, warning.Text)
	}
	answer, _ := result.Raw()
	return question.Read(answer, warnings, result.Error())
}

// createWith creates a Pod with the sidecars in a dry run, in a namespace for whose Pods no
// webhook is called. It also returns an error if the SidecarSet does not compile or inject.
func createWith(t *testing.T, set object) error {
	t.Helper()
	program, err := inject.Compile(set)
	if err != nil {
		return fmt.Errorf("compiling: %w", err)
	}
	p := pod(metav1.NamespaceSystem, "random", "app=web")
	p.Spec.ServiceAccountName = "default" // no admission plugin of this API server sets it
	app, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := inject.Compute(inject.Input{Pod: fixtures.View(t, app), Candidates: []inject.Candidate{{Current: program}}, Now: fixtures.Now})
	if err != nil {
		return fmt.Errorf("computing: %w", err)
	}
	u := &unstructured.Unstructured{Object: fixtures.Apply(t, plan, app)}
	u.SetAPIVersion("v1")
	u.SetKind("Pod")
	return api.Create(t.Context(), u, client.DryRunAll)
}

func typedSet(t *testing.T, set object) *appsv1beta1.SidecarSet {
	t.Helper()
	out := &appsv1beta1.SidecarSet{}
	if err := json.Unmarshal([]byte(asText(t, set)), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// asJSON gives values the types that a decoder of JSON gives them.
func asJSON(t *testing.T, value object) object {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(asText(t, value))); err != nil {
		t.Fatal(err)
	}
	return u.Object
}

func asText(t *testing.T, value any) string {
	t.Helper()
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
