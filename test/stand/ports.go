package stand

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

// FreePorts returns ports of 127.0.0.1 on which no process listens.
//
// They lie below the range from which the kernel takes the local ports of
// outgoing connections: a client that dials a stopped server again and again
// would otherwise, sooner or later, be connected to itself.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	low := 32768 // the kernel's default
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &low)
	}
	const first = 15000
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := first + rand.IntN(max(low-first, 1000))
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer func() { _ = listener.Close() }() // held until all are chosen, so they differ
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("%d free ports were not found", n)
}
