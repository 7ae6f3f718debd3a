// Package unauthenticated has the requests that any Pod of the cluster can send to the operator's ports
// without credentials. Tests send them, and look at what happens to other requests.
package unauthenticated

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/sidecarset/operator/test/stand"
)

// Patience is how long an unauthenticated client waits for a connection, and how long API
// servers wait for the answer about a selected Pod.
const Patience = 5 * time.Second

// Body is a well-formed request body, sent as a whole, which needs much more memory when it is
// decoded.
type Body struct{ Name, Path, Body string }

// many is a JSON list of one element, of some size in bytes.
func many(element string, size int) string {
	return "[" + strings.Repeat(element+",", size/(len(element)+1)) + element + "]"
}

func sidecarSetWith(spec string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"group":"apps.kruise.io","version":"v1beta1","kind":"SidecarSet"},` +
		`"resource":{"group":"apps.kruise.io","version":"v1beta1","resource":"sidecarsets"},"operation":"CREATE","name":"s","dryRun":true,"userInfo":{"username":"u"},"object":` +
		`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"s"},"spec":` + spec + `}}}`
}

// targeting is a SidecarSet of n sidecars with one regular expression each.
func targeting(n int, target string) string {
	container := `{"name":"a","image":"a","resourcesPolicy":{"targetContainersMode":"sum","targetContainersNameRegex":"` + target + `","resourcesExpr":{"limits":{"cpu":"cpu"}}}}`
	return `{"selector":{"matchLabels":{"app":"web"}},"containers":` + many(container, (n-1)*(len(container)+1)) + `}`
}

// numbered is a JSON list of n different strings.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"v%x"`, i)
	}
	return "[" + b.String()[1:] + "]"
}

func members(size int, value string) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `"%x":%s,`, i, value)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// Bodies returns the bodies of earlier attacks, against which the operator was repaired, and the
// largest bodies that it accepts.
func Bodies() []Body {
	const mutate, validate, pods, convert = "/mutate-apps-kruise-io-sidecarset", "/validate-apps-kruise-io-sidecarset", "/pods", "/convert"
	list := func(objects string) string {
		return `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"u-1","desiredAPIVersion":"apps.kruise.io/v1alpha1","objects":` + objects + `}}`
	}
	hashes := strings.ReplaceAll(members(3<<20, `""`), `"`, `\"`)
	container := `{"ports":` + many(`{}`, 3*95) + `}`
	return []Body{
		{"1 MiB of empty containers", mutate, sidecarSetWith(`{"containers":` + many(`{}`, 1<<20) + `}`)},
		{"3 MiB of empty containers", mutate, sidecarSetWith(`{"containers":` + many(`{}`, 3<<20) + `}`)},
		{"1 MiB of empty volumes", mutate, sidecarSetWith(`{"volumes":` + many(`{}`, 1<<20) + `}`)},
		{"3 MiB of empty containers to the validator", validate, sidecarSetWith(`{"containers":` + many(`{}`, 3<<20) + `}`)},
		{"as many ports as pass", mutate, sidecarSetWith(`{"containers":` + many(container, 990*(len(container)+1)) + `}`)},
		{"as many wrong ports as pass", validate, sidecarSetWith(`{"containers":` + many(container, 990*(len(container)+1)) + `}`)},
		{"7 MiB of labels of a SidecarSet", mutate, sidecarSetWith(`{"selector":{"matchLabels":{` + members(6<<20, `""`) + `}}}`)},
		{"a member that is named 700,000 times", mutate, sidecarSetWith(`{"selector":{"matchLabels":{` + strings.Repeat(`"a":"b",`, 700_000) + `"a":"b"}}}`)},
		{"7 MiB of one string of a SidecarSet", mutate, sidecarSetWith(`{"selector":{"matchLabels":{"a":"` + strings.Repeat("x", 6<<20) + `"}}}`)},
		{"a quantity that takes hours to parse", mutate, sidecarSetWith(`{"containers":[{"name":"a","resources":{"limits":{"cpu":"1e-900000000"}}}]}`)},
		{"such a quantity to the validator", validate, sidecarSetWith(`{"volumes":[{"name":"a","emptyDir":{"sizeLimit":"1e-900000000"}}]}`)},
		{"a regular expression that becomes 133 MiB", validate, sidecarSetWith(targeting(1, strings.Repeat("a{1000}", 3000)))},
		{"a thousand that become 1 MiB each", validate, sidecarSetWith(targeting(600, strings.Repeat("a{1000}", 36)))},
		{"98,000 values of a selector", validate, sidecarSetWith(`{"selector":{"matchExpressions":[{"key":"app","operator":"NotIn","values":` + numbered(98_000) + `}]},"containers":[{"name":"a","image":"a"}]}`)},
		{"98,000 values of a hundred expressions", validate, sidecarSetWith(`{"selector":{"matchExpressions":` +
			many(`{"key":"app","operator":"NotIn","values":`+numbered(970)+`}`, 100*970*9) + `},"containers":[{"name":"a","image":"a"}]}`)},
		{"7 MiB of labels of a Pod", pods, PodReview("default", `{"metadata":{"name":"p","labels":{`+members(6<<20, `""`)+`}},"spec":{"containers":[]}}`)},
		{"7 MiB of empty containers of a Pod", pods, PodReview("default", `{"metadata":{"name":"p"},"spec":{"containers":`+many(`{}`, 6<<20)+`}}`)},
		{"3 MiB of hashes of a Pod", pods, PodReview("default", `{"metadata":{"name":"p","annotations":{"kruise.io/sidecarset-hash":"{`+hashes+`}"}},"spec":{"containers":[]}}`)},
		{"6 MiB of a list in a Pod's annotation", pods, PodReview("default", `{"metadata":{"name":"p","annotations":{"kruise.io/sidecarset-injected-list":"`+strings.Repeat("a,", 3<<20)+`"}},"spec":{"containers":[]}}`)},
		{"270,000 tiny objects", convert, list(many(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet"}`, 15<<20))},
		{"650,000 tiny objects", convert, list(many(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet"}`, 650_000*59))},
		{"5 million empty objects", convert, list(many(`{}`, 15<<20))},
		{"one object of 15 MiB", convert, list(`[{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"labels":{` + members(15<<20, `""`) + `}}}]`)},
		{"1,500 objects of 10 KB", convert, list(many(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","spec":{"x":"`+strings.Repeat("x", 10<<10)+`"}}`, 1500*10<<10))},
	}
}

// PodReview is the review of a Pod of a namespace.
func PodReview(namespace, object string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"group":"","version":"v1","kind":"Pod"},` +
		`"resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE","namespace":"` + namespace + `","name":"p","object":` + object + `}}`
}

// Unfinished sends a megabyte of a header that does not end, and waits until the
// connection is closed. config is nil where there is no TLS.
func Unfinished(ctx context.Context, address, from string, config *tls.Config) {
	conn, err := dial(ctx, address, from, config)
	if err != nil {
		return // the server refuses the connection
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * Patience))
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n"); err != nil {
		return
	}
	for range 259 {
		if _, err := io.WriteString(conn, "X-A: "+strings.Repeat("a", 4000)+"\r\n"); err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, conn)
}

// Stall sends the beginning of a long body, and waits until the connection is
// closed.
func Stall(ctx context.Context, address, from, path string, size int, config *tls.Config) {
	hold(ctx, address, from, config, path, 4_000_000, `{"kind":"`+strings.Repeat("x", size))
}

// KeepBusy opens a connection and sends the beginning of a request. It keeps the connection until
// the server closes it or ctx ends.
func KeepBusy(ctx context.Context, address, from string, config *tls.Config) {
	hold(ctx, address, from, config, "/pods", 100, "{")
}

// hold sends a request of which only the beginning of the body arrives.
func hold(ctx context.Context, address, from string, config *tls.Config, path string, length int, body string) {
	conn, err := dial(ctx, address, from, config)
	if err != nil {
		return // the server refuses the connection
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, length, body)
	_, _ = io.Copy(io.Discard, conn)
}

func dial(ctx context.Context, address, from string, config *tls.Config) (net.Conn, error) {
	if config == nil {
		return Dialer(from).DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: Dialer(from), Config: config}).DialContext(ctx, "tcp", address)
}

// Address returns the n-th of four addresses that no replica and no API server has.
func Address(n int) string {
	if stand.Namespace() {
		return stand.Address(12 + n)
	}
	return fmt.Sprintf("127.0.0.%d", 12+n)
}

// Dialer connects from an address.
func Dialer(address string) *net.Dialer {
	return &net.Dialer{Timeout: Patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
}
