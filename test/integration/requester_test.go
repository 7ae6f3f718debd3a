package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// user is a client that acts as one user with rights of its own. It keeps the warnings
// of the API server.
type user struct {
	client.Client
	name string

	mu       sync.Mutex
	warnings []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (u *user) HandleWarningHeader(_ int, _, text string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.warnings = append(u.warnings, text)
}

// told returns the warnings since the last call.
func (u *user) told() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	told := strings.Join(u.warnings, "\n")
	u.warnings = nil
	return told
}

// newUser makes a client of a user who may write SidecarSets and has the
// roles, each as "role" for all namespaces or "namespace/role" for one.
func newUser(t *testing.T, name string, roles ...string) *user {
	t.Helper()
	u := &user{name: name}
	config := rest.CopyConfig(cluster.Config())
	config.Impersonate.UserName = name
	config.WarningHandler = u
	var err error
	if u.Client, err = client.New(config, client.Options{Scheme: api.Scheme()}); err != nil {
		t.Fatal(err)
	}
	rights := []authorizationv1.ResourceAttributes{{Verb: "create", Group: "apps.kruise.io", Resource: "sidecarsets"}}
	for _, role := range append(roles, "sidecarset-editor") {
		namespace, inOne, isInOne := strings.Cut(role, "/")
		meta := metav1.ObjectMeta{GenerateName: "test-"}
		subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
		var binding client.Object = &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
		if isInOne {
			meta.Namespace = namespace
			binding = &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: inOne}}
			rights = append(rights, authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods", Namespace: namespace})
		} else if right, known := rightOf[role]; known {
			rights = append(rights, right)
		}
		if err := api.Create(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = api.Delete(context.WithoutCancel(t.Context()), binding) })
	}
	await.Eventually(t, "the rights of "+name, func(ctx context.Context) error {
		for i := range rights {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &rights[i]}}
			if err := u.Create(ctx, review); err != nil || !review.Status.Allowed {
				return fmt.Errorf("%v is not allowed: %w", rights[i], err)
			}
		}
		return nil
	})
	return u
}

// rightOf is a right by which a test sees that the API server knows of the binding of a role.
var rightOf = map[string]authorizationv1.ResourceAttributes{
	"system:aggregate-to-edit":     {Verb: "create", Resource: "pods"},
	"sidecarset-privileged-editor": {Verb: "inject-privileged", Group: "apps.kruise.io", Resource: "sidecarsets"},
}

const (
	requesterSpec  = "selector: {matchLabels: {app: web}}\ncontainers: [{name: side, image: \"example.com/side:v1\"}]\n"
	privilegedSpec = "selector: {matchLabels: {app: web}}\ncontainers: [{name: side, image: \"example.com/side:v1\", securityContext: {privileged: true}}]\n"
	inNamespace    = "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}\n"
)

// onlyHere is a spec that selects app=<app> in the test's namespace.
func onlyHere(app string) string {
	return fmt.Sprintf("selector: {matchLabels: {app: %s}}\n%scontainers: [{name: side-%s, image: \"example.com/side:v1\"}]\n", app, inNamespace, app)
}

// requesterCases are users by their roles, what they want to create, and what
// they lack.
var requesterCases = map[string]struct {
	roles []string
	spec  string
	lacks string
}{
	"who may create Pods nowhere":              {nil, requesterSpec + inNamespace, "may not create Pods in NS, where this SidecarSet injects"},
	"who may create Pods in the namespace":     {[]string{"NS/system:aggregate-to-edit"}, requesterSpec + inNamespace, ""},
	"in all namespaces, with rights in one":    {[]string{"NS/system:aggregate-to-edit"}, requesterSpec, "may not create Pods in all namespaces"},
	"in all namespaces, with rights in all":    {[]string{"system:aggregate-to-edit"}, requesterSpec, ""},
	"a privileged container, without the verb": {[]string{"NS/system:aggregate-to-edit"}, privilegedSpec + inNamespace, "may not use spec.containers[0].securityContext.privileged"},
	"a privileged container, with the verb":    {[]string{"NS/system:aggregate-to-edit", "sidecarset-privileged-editor"}, privilegedSpec + inNamespace, ""},
}

// A user who lacks a right is told which, and where. (With --requester-check=enforce it is a refusal.)
func TestUsersAreToldWhatTheyMayNotDo(t *testing.T) {
	for name, tc := range requesterCases {
		t.Run(name, func(t *testing.T) {
			namespace := testkit.Namespace(t, api, nil)
			var roles []string
			for _, role := range tc.roles {
				roles = append(roles, strings.ReplaceAll(role, "NS", namespace))
			}
			requester := newUser(t, "requester-"+namespace, roles...)
			if err := requester.Create(t.Context(), newSidecarSet(t, namespace, tc.spec), client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			lacks, told := strings.ReplaceAll(tc.lacks, "NS", namespace), requester.told()
			if lacks == "" && strings.Contains(told, "may not") || !strings.Contains(told, lacks) {
				t.Errorf("told %q, want %q", told, lacks)
			}
		})
	}
}
