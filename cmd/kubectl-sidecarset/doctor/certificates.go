package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// replicas returns the addresses that API servers call, host:port, with the names of the Pods; "" for
// a process that is no Pod.
func (f *facts) replicas() map[string]string {
	if called, err := url.Parse(f.url); err == nil && f.url != "" {
		return map[string]string{net.JoinHostPort(called.Hostname(), cmp.Or(called.Port(), "443")): ""}
	}
	all := map[string]string{}
	for _, slice := range f.endpoints.Items {
		if service := slice.Labels[discoveryv1.LabelServiceName]; service != f.service() {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			for _, port := range slice.Ports {
				pod := ""
				if endpoint.TargetRef != nil && endpoint.TargetRef.Kind == "Pod" {
					pod = endpoint.TargetRef.Name
				}
				all[net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*port.Port)))] = pod
			}
		}
	}
	return all
}

// trust is what API servers trust when they call one server name for one object.
type trust struct{ object, host, bundle string }

func (f *facts) trusts() (all []trust) {
	add := func(object string, config *admissionregistrationv1.WebhookClientConfig) {
		t := trust{object, f.host(config), string(config.CABundle)}
		if t.host != "" && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	for _, c := range f.mutating.Items {
		for i := range c.Webhooks {
			add("MutatingWebhookConfiguration "+c.Name, &c.Webhooks[i].ClientConfig)
		}
	}
	for _, c := range f.validating.Items {
		for i := range c.Webhooks {
			add("ValidatingWebhookConfiguration "+c.Name, &c.Webhooks[i].ClientConfig)
		}
	}
	if config := f.conversionConfig(); config != nil {
		add(crdName, config)
	}
	return all
}

func (f *facts) lookAtCertificates(ctx context.Context, r *Result) {
	served := map[string][]*x509.Certificate{} // by replica
	for address, pod := range f.replicas() {
		replica := strings.TrimSpace(pod + " " + address)
		chain, err := f.handshake(ctx, address, pod)
		if err != nil {
			r.skip(fmt.Errorf("the certificate of %s: %w", replica, err))
			continue
		}
		served[replica] = chain
	}
	if len(served) == 0 {
		r.skip(errors.New("no replica answers, so there is no certificate to compare with"))
	}
	for _, t := range f.trusts() {
		judgeTrust(t, served, time.Now(), r)
	}
}

// judgeTrust verifies each certificate with a bundle, as API servers do.
func judgeTrust(t trust, served map[string][]*x509.Certificate, now time.Time, r *Result) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(t.bundle)) {
		r.add(Error, t.object, "docs/certificates.md", leaderLog, "has no CA bundle: API servers cannot call the operator")
		return
	}
	for _, replica := range slices.Sorted(maps.Keys(served)) {
		chain, intermediates := served[replica], x509.NewCertPool()
		for _, c := range chain[1:] {
			intermediates.AddCert(c)
		}
		if _, err := chain[0].Verify(x509.VerifyOptions{DNSName: t.host, Roots: roots, Intermediates: intermediates, CurrentTime: now}); err != nil {
			r.add(Error, t.object, "docs/certificates.md", leaderLog+", and whether another program writes the bundle (kubectl get --show-managed-fields -o yaml)",
				"API servers do not accept the certificate of %s: %v", replica, err)
		}
	}
}

// handshake returns the certificates that a replica serves. A Pod is reached by a port-forward, a
// process outside of the cluster directly.
func (f *facts) handshake(ctx context.Context, address, pod string) ([]*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if pod != "" {
		_, port, _ := net.SplitHostPort(address)
		local, err := f.forward(ctx, pod, port)
		if err != nil {
			return nil, fmt.Errorf("port-forward: %w", err)
		}
		address = local
	}
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // the check verifies what comes
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates, nil
}

// forward returns a local address that leads to a port of a Pod until ctx ends.
func (f *facts) forward(ctx context.Context, pod, port string) (address string, err error) {
	clients, err := kubernetes.NewForConfig(f.Config)
	if err != nil {
		return "", err
	}
	to := clients.CoreV1().RESTClient().Post().Resource("pods").Namespace(f.namespace).Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(f.Config)
	if err != nil {
		return "", err
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, to)
	ready, ended := make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:" + port}, ctx.Done(), ready, io.Discard, io.Discard)
	if err != nil {
		return "", err
	}
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return "", err
	case <-ctx.Done():
		return "", ctx.Err()
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), nil
}
