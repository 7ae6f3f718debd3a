package netns

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// setUp brings lo up and gives it its addresses.
func setUp() error {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return fmt.Errorf("finding the interface lo: %w", err)
	}
	socket, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer syscall.Close(socket)
	if err := request(socket, syscall.RTM_NEWLINK, 0, linkUp(lo.Index)); err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	prefixes := []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(ServiceAddress), 32)}
	for i := range Addresses {
		prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, 0, byte(i + 1)}), 24))
	}
	for _, prefix := range prefixes {
		if err := request(socket, syscall.RTM_NEWADDR, syscall.NLM_F_CREATE, address(lo.Index, prefix)); err != nil {
			return fmt.Errorf("adding the address %s: %w", prefix, err)
		}
	}
	return nil
}

// linkUp returns a struct ifinfomsg that sets only IFF_UP.
func linkUp(index int) []byte {
	body := make([]byte, 0, syscall.SizeofIfInfomsg)
	body = append(body, syscall.AF_UNSPEC, 0)                             // family, padding
	body = binary.NativeEndian.AppendUint16(body, 0)                      // type
	body = binary.NativeEndian.AppendUint32(body, uint32(index))          // index
	body = binary.NativeEndian.AppendUint32(body, uint32(syscall.IFF_UP)) // flags
	return binary.NativeEndian.AppendUint32(body, uint32(syscall.IFF_UP)) // which flags change
}

// address returns a struct ifaddrmsg for an IPv4 prefix. Its address is both the local and the
// interface address, as lo needs it.
func address(index int, prefix netip.Prefix) []byte {
	ip := prefix.Addr().As4()
	body := make([]byte, 0, syscall.SizeofIfAddrmsg+16)
	body = append(body, syscall.AF_INET, byte(prefix.Bits()), 0, syscall.RT_SCOPE_UNIVERSE) // family, prefix, flags, scope
	body = binary.NativeEndian.AppendUint32(body, uint32(index))
	for _, kind := range []uint16{syscall.IFA_LOCAL, syscall.IFA_ADDRESS} {
		body = binary.NativeEndian.AppendUint16(body, 8) // length: this header and four bytes
		body = binary.NativeEndian.AppendUint16(body, kind)
		body = append(body, ip[:]...)
	}
	return body
}

// request sends one message and waits for the kernel's acknowledgement.
func request(socket int, kind uint16, flags int, body []byte) error {
	message := make([]byte, 0, syscall.SizeofNlMsghdr+len(body))
	message = binary.NativeEndian.AppendUint32(message, uint32(syscall.SizeofNlMsghdr+len(body)))
	message = binary.NativeEndian.AppendUint16(message, kind)
	message = binary.NativeEndian.AppendUint16(message, uint16(syscall.NLM_F_REQUEST|syscall.NLM_F_ACK|flags))
	message = binary.NativeEndian.AppendUint32(message, 1) // sequence: one request at a time
	message = binary.NativeEndian.AppendUint32(message, 0) // port: the kernel fills it in
	message = append(message, body...)
	if err := syscall.Sendto(socket, message, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, os.Getpagesize())
	n, _, err := syscall.Recvfrom(socket, answer, 0)
	if err != nil {
		return err
	}
	messages, err := syscall.ParseNetlinkMessage(answer[:n])
	if err != nil {
		return err
	}
	for _, m := range messages {
		if m.Header.Type != syscall.NLMSG_ERROR || len(m.Data) < 4 {
			continue
		}
		if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
			return syscall.Errno(-code)
		}
	}
	return nil
}
