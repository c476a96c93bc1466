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
