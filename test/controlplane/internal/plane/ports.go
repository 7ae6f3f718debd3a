package plane

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

// lowestPort is above what services usually listen on.
const lowestPort = 15000

// freePorts picks ports of loopback on which no process listens. They lie below
// the range from which the kernel takes the local ports of outgoing
// connections: a client that dials a stopped server again and again would
// otherwise, sooner or later, be connected to itself and keep the server from
// coming back.
func freePorts(n int) ([]int, error) {
	highest := ephemeralStart() - 1
	if highest < lowestPort+100 {
		highest = 65535
	}
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := lowestPort + rand.IntN(highest-lowestPort+1)
		listener, err := net.Listen("tcp", net.JoinHostPort(loopback, fmt.Sprint(port)))
		if err != nil {
			continue
		}
		defer listener.Close() // held until all are chosen, so they differ
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("finding %d free ports at %s", n, loopback)
}

func ephemeralStart() int {
	low := 32768 // the kernel's default
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &low)
	}
	return low
}
