package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stranger"
	"github.com/sidecarset/operator/test/testkit"
)

// ask posts body to a replica's path when the replica asks for the body. If the client did not
// wait, a replica that refuses the body unread would close the connection during the request.
func ask(t *testing.T, path, contentType string, body io.Reader) (int, string) {
	t.Helper()
	httpClient := replicas[0].Trusting(t, "")
	httpClient.Transport.(*http.Transport).ExpectContinueTimeout = await.Patience
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+deploy.ServerName+path, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Expect", "100-continue")
	response, err := httpClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

func TestBadRequestsGetClearAnswers(t *testing.T) {
	good := stranger.PodReview("default", `{"metadata":{"name":"p"},"spec":{"containers":[]}}`)
	tests := map[string]struct {
		path, contentType, body string
		status                  int
		want                    string
	}{
		"malformed":         {"/pods", "application/json", `{"kind": "AdmissionReview", `, 400, "AdmissionReview"},
		"empty":             {"/pods", "application/json", ``, 400, ""},
		"another kind":      {"/pods", "application/json", `{"apiVersion":"v1","kind":"Pod"}`, 400, "AdmissionReview"},
		"another version":   {"/pods", "application/json", strings.Replace(good, "admission.k8s.io/v1", "admission.k8s.io/v2", 1), 400, "admission.k8s.io/v1"},
		"no namespace":      {"/pods", "application/json", strings.Replace(good, `"namespace":"default",`, "", 1), 400, "namespace"},
		"oversized":         {"/pods", "application/json", strings.Repeat(" ", 8<<20), 413, ""},
		"another type":      {"/pods", "text/plain", good, 415, "application/json"},
		"unknown path":      {"/nowhere", "application/json", good, 404, ""},
		"wrong conversion":  {"/convert", "application/json", good, 400, "ConversionReview"},
		"broken conversion": {"/convert", "application/json", `[]`, 400, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			status, answer := ask(t, tc.path, tc.contentType, strings.NewReader(tc.body))
			if status != tc.status && !deniedWith(answer, tc.status) {
				t.Errorf("status %d, want %d: %s", status, tc.status, answer)
			}
			if !strings.Contains(answer, tc.want) {
				t.Errorf("the answer does not say %q: %s", tc.want, answer)
			}
		})
	}
	if status, answer := ask(t, "/pods", "application/json", strings.NewReader(good)); status != 200 || !strings.Contains(answer, `"allowed":true`) {
		t.Errorf("after all that a good request got %d: %s", status, answer)
	}
}

// deniedWith reports whether the answer is an AdmissionReview that denies with
// the code.
func deniedWith(answer string, code int) bool {
	var r admissionv1.AdmissionReview
	return json.Unmarshal([]byte(answer), &r) == nil && r.Response != nil && !r.Response.Allowed &&
		r.Response.Result != nil && r.Response.Result.Code == int32(code)
}

func TestMetricsAreForAuthorizedClients(t *testing.T) {
	get := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, replicas[0].Metrics+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		httpClient := &http.Client{Transport: &http.Transport{TLSClientConfig: replicas[0].Trusting(t, "").Transport.(*http.Transport).TLSClientConfig}}
		response, err := httpClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, metric := range []string{"\nsidecarset_build_info{", "\nleader_election_master_status{name=\"" + deploy.Lease + "\"}"} {
			if response.StatusCode == http.StatusOK && !strings.Contains(string(body), metric) {
				t.Errorf("no metric %q in %d bytes", metric, len(body))
			}
		}
		return response.StatusCode
	}
	if got := get(""); got != http.StatusUnauthorized && got != http.StatusForbidden {
		t.Errorf("without a token: %d", got)
	}
	namespace := testkit.Namespace(t, api, nil)
	tokenOf := func(name string) string {
		create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		token, err := cluster.Kubectl(t.Context(), "", "-n", namespace, "create", "token", name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(token)
	}
	// A replica checks at most one unknown token of an address in a second.
	expect := func(token string, want int) {
		t.Helper()
		await.Eventually(t, fmt.Sprint("status ", want), func(context.Context) error {
			if got := get(token); got != want {
				return fmt.Errorf("status %d", got)
			}
			return nil
		})
	}
	expect(tokenOf("stranger"), http.StatusForbidden)
	token := tokenOf("scraper")
	if _, err := cluster.Kubectl(t.Context(), "", "create", "clusterrolebinding", "scraper-"+namespace,
		"--clusterrole=sidecarset-metrics-reader", "--serviceaccount="+namespace+":scraper"); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the right", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "", "auth", "can-i", "get", "/metrics", "--as=system:serviceaccount:"+namespace+":scraper")
		return err
	})
	expect(token, http.StatusOK)
}
