// Command podtool is what the containers of tests run. Without arguments it waits
// for a signal, as the pause container of a sandbox does.
//
//	podtool proxy [sidecar] [transparent]
//	                         answers as a mesh's proxy would be reached: TCP 15001, 15006, DNS 15053;
//	                         transparent: 15006 is for connections that keep their addresses (TPROXY)
//	podtool serve PORT…      answers at the ports
//	podtool probe WHAT…      makes connections, and prints what each came to, a line for each
//	podtool cat FILE         prints a file
//
// Called by a container runtime as a CNI plugin, it is another mesh's, which replaces our rules by its own.
//
// A probe is tcp:ADDRESS:PORT or dns:ADDRESS:PORT (with UDP) or dnstcp:ADDRESS:PORT.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "podtool:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if command := os.Getenv("CNI_COMMAND"); command != "" {
		return cni(command, os.Stdin)
	}
	if len(args) == 0 {
		return wait()
	}
	switch args[0] {
	case "proxy":
		return proxy(slices.Contains(args, "transparent"))
	case "serve":
		for _, a := range args[1:] {
			port, err := strconv.ParseUint(a, 10, 16)
			if err != nil {
				return err
			}
			if err := serve("app", uint16(port), false); err != nil {
				return err
			}
		}
		return wait()
	case "probe":
		return probe(args[1:])
	case "cat":
		text, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(text)
		return err
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}

// wait waits for the signal to end, and reaps what becomes its child meanwhile.
func wait() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return nil
		}
		for {
			var status syscall.WaitStatus
			if pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}
