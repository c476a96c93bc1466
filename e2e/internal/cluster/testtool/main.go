// Command testtool is every program in the cluster tests' pods: an application, its clients, a mesh's proxy, and the
// process that holds a sandbox.
//
//	testtool pause               does nothing until it is asked to end
//	testtool serve PORT          answers every connection with one line
//	testtool proxy               the proxy: see the function
//	testtool dial HOST:PORT      connects and prints what is answered
//	testtool sniff HOST:PORT     dial every 20 ms, until it is asked to end: prints what is answered each time it changes
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	args := append(os.Args[1:], "pause")
	var err error
	switch args[0] {
	case "serve":
		err = serve(args[1])
	case "proxy":
		err = proxy()
	case "dial":
		var answer string
		answer, err = dial(args[1])
		fmt.Print(answer)
	case "sniff":
		err = sniff(args[1])
	case "pause":
		wait()
	default:
		err = fmt.Errorf("unknown command %q", args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testtool:", err)
		os.Exit(1)
	}
}

// wait returns when the process is asked to end. A sandbox's process has to reap the pod's orphans.
func wait() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

// serve answers with the name of the pod and the client's address.
func serve(port string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	return listen(":"+port, func(c net.Conn) error {
		_, err := fmt.Fprintf(c, "app %s\n", host)
		return err
	})
}

// proxy stands for a mesh's: on the mesh's ports it takes what is redirected to it, says so in one line with the
// original destination, and passes on to there whatever comes after it. Inbound it speaks to the application by the
// loopback address.
func proxy() error {
	failed := make(chan error, 2)
	for port, name := range map[string]string{"15001": "outbound", "15006": "inbound"} {
		go func() {
			failed <- listen(":"+port, func(c net.Conn) error { return pass(c, name) })
		}()
	}
	stopped := make(chan struct{})
	go func() {
		wait()
		close(stopped)
	}()
	select {
	case err := <-failed:
		return err
	case <-stopped:
		return nil
	}
}

func pass(c net.Conn, name string) error {
	dst, err := originalDst(c.(*net.TCPConn))
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "%s %s\n", name, dst); err != nil {
		return err
	}
	if name == "inbound" {
		dst = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), dst.Port())
	}
	up, err := net.DialTimeout("tcp", dst.String(), 3*time.Second)
	if err != nil {
		_, err = fmt.Fprintln(c, "proxy:", err)
		return err
	}
	defer func() { _ = up.Close() }()
	_, err = io.Copy(c, up)
	return err
}

// listen gives each connection to answer, and closes it then.
func listen(addr string, answer func(net.Conn) error) error {
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = c.Close() }()
			if err := answer(c); err != nil {
				fmt.Fprintln(os.Stderr, "testtool:", c.RemoteAddr(), err)
			}
		}()
	}
}

func dial(addr string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 3*time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func sniff(addr string) error {
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGTERM, syscall.SIGINT)
	last := ""
	for {
		answer, err := dial(addr)
		if err != nil {
			answer = err.Error()
		}
		if answer = strings.Join(strings.Fields(answer), " "); answer != last {
			fmt.Println(answer)
			last = answer
		}
		select {
		case <-stopped:
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

var errNotRedirected = errors.New("the connection was not redirected")
