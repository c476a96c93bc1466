// Command podtool is what the containers of tests run. Without arguments it waits
// for a signal, as the pause container of a sandbox does.
//
//	podtool proxy [sidecar] [transparent]
//	                         answers as a mesh's proxy would be reached: TCP 15001, 15006, DNS 15053;
//	                         transparent: 15006 is for connections that keep their addresses (TPROXY)
//	podtool serve PORT…      answers at the ports; http:PORT with HTTP
//	podtool ztunnel SOCKET [forward]
//	                         is the proxy of the node: it asks the agent at the socket for pods, and answers in each as a
//	                         sidecar would; forward: it passes each connection on to where it was to go
//	podtool peer TYPE        installs another mesh's plugin on the node, as that mesh's own agent does, until it ends
//	podtool load WHAT…       makes connections until its input ends, and then prints what they came to, each with its number
//	podtool probe WHAT…      makes connections, and prints what each came to, a line for each
//	podtool witness DIR WHAT makes connections until it ends, and notes in DIR each time that they come to something else
//	podtool cat FILE         prints a file
//
// Called by a container runtime as a CNI plugin, it is another mesh's: that which podtool peer installs, or one that replaces our
// rules by its own. Under the name recorder it records the runtime's calls and fails those that the test wants to fail.
//
// A probe is tcp:ADDRESS:PORT or dns:ADDRESS:PORT (with UDP) or dnstcp:ADDRESS:PORT.
package main
