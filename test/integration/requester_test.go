package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
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
func newUser(t *testing.T, c *stand.Cluster, admin client.Client, name string, roles ...string) *user {
	t.Helper()
	bind(t, admin, name, append([]string{"sidecarset-editor"}, roles...)...)
	return newClient(t, c, admin, name, roles...)
}

// bind gives a user roles, until the test ends.
func bind(t *testing.T, admin client.Client, name string, roles ...string) {
	t.Helper()
	for _, role := range roles {
		namespace, role, inOne := strings.Cut(role, "/")
		meta := metav1.ObjectMeta{GenerateName: "test-"}
		subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
		var binding client.Object
		if inOne {
			meta.Namespace = namespace
			binding = &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
		} else {
			binding = &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: namespace}}
		}
		if err := admin.Create(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(t.Context()), binding) })
	}
}

// newClient makes the client of a user with roles that have been bound.
func newClient(t *testing.T, c *stand.Cluster, admin client.Client, name string, roles ...string) *user {
	t.Helper()
	u := &user{name: name}
	config := rest.CopyConfig(c.Config())
	config.Impersonate.UserName = name
	config.WarningHandler = u
	var err error
	if u.Client, err = client.New(config, client.Options{Scheme: admin.Scheme()}); err != nil {
		t.Fatal(err)
	}
	u.awaitRights(t, roles)
	return u
}

// awaitRights waits until the API server knows of the bindings.
func (u *user) awaitRights(t *testing.T, roles []string) {
	t.Helper()
	rights := []authorizationv1.ResourceAttributes{{Verb: "create", Group: "apps.kruise.io", Resource: "sidecarsets"}}
	for _, role := range roles {
		switch namespace, _, inOne := strings.Cut(role, "/"); {
		case inOne:
			rights = append(rights, authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods", Namespace: namespace})
		case role == "sidecarset-privileged-editor":
			rights = append(rights, authorizationv1.ResourceAttributes{Verb: "inject-privileged", Group: "apps.kruise.io", Resource: "sidecarsets"})
		default:
			rights = append(rights, authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods"})
		}
	}
	await.Eventually(t, "the rights of "+u.name, func(ctx context.Context) error {
		for i := range rights {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &rights[i]}}
			if err := u.Create(ctx, review); err != nil || !review.Status.Allowed {
				return fmt.Errorf("%v is not allowed: %w", rights[i], err)
			}
		}
		return nil
	})
}

const (
	requesterSpec  = "selector: {matchLabels: {app: web}}\ncontainers: [{name: side, image: \"example.com/side:v1\"}]\n"
	privilegedSpec = "selector: {matchLabels: {app: web}}\ncontainers: [{name: side, image: \"example.com/side:v1\", securityContext: {privileged: true}}]\n"
	inNamespace    = "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}\n"
)

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

func inside(namespace string, roles []string) []string {
	named := make([]string, len(roles))
	for i, role := range roles {
		named[i] = strings.ReplaceAll(role, "NS", namespace)
	}
	return named
}

func TestAuthorsWithoutRightsAreRefusedWhereEnforced(t *testing.T) {
	own := installApart(t, deploy.Default)
	own.start(t, 7, "--requester-check=enforce")
	testkit.AwaitCalled(t, own.api)
	for name, tc := range requesterCases {
		t.Run(name, func(t *testing.T) {
			author := newUser(t, own.cluster, own.api, "author-"+strings.ReplaceAll(name, " ", "-"), inside("default", tc.roles)...)
			set := newSidecarSet(t, "default", tc.spec)
			lacks := strings.ReplaceAll(tc.lacks, "NS", "default")
			err := author.Create(t.Context(), set, client.DryRunAll)
			switch {
			case tc.lacks == "" && err != nil:
				t.Error(err)
			case tc.lacks != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), lacks) || !strings.Contains(err.Error(), author.name)):
				t.Errorf("got %v, want a 403 that names %s and says %q", err, author.name, lacks)
			}
		})
	}
}
