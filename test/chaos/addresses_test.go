package chaos

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/stand"
)

// publishAPIServers makes both API servers answer at addresses that the Service kubernetes
// names, as in a real cluster, until the end of the test. The stand's API servers listen on
// loopback, and a loopback address cannot be an endpoint.
func publishAPIServers(t *testing.T) {
	t.Helper()
	stand.NeedNamespace(t)
	const port = 6443
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(port))}},
	}
	for i, url := range cluster.APIServers {
		address := stand.Address(18 + i) // no replica has this address
		splice(t, fmt.Sprintf("%s:%d", address, port), strings.TrimPrefix(url, "https://"))
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	slices := clients[0].DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	if _, err := slices.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slices.Delete(context.WithoutCancel(t.Context()), slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// splice passes on each connection from one address to another, until the end of the test.
func splice(t *testing.T, from, to string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		stop()
		_ = listener.Close()
	})
	go func() {
		for {
			incoming, err := listener.Accept()
			if err != nil {
				return
			}
			go join(ctx, incoming, to)
		}
	}()
}

// join copies both ways until one end closes, or ctx ends.
func join(ctx context.Context, incoming net.Conn, to string) {
	defer incoming.Close()
	outgoing, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer outgoing.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{incoming, outgoing}, {outgoing, incoming}} {
		go func() {
			_, _ = io.Copy(way[0], way[1])
			ended <- struct{}{}
		}()
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
