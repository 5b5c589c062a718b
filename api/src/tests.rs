//! Tests of the API from its callers' side: requests and answers. The journal is in memory, the rows are
//! real, and the decider answers from a table.

mod bad_input;
mod channels;
mod cloudevents;
mod conventions;
mod dry_run;
mod levels;
mod listener;
mod moments;
mod published;
mod rates;
mod reads;
mod schema_comparison;
mod streams;
mod streams_of_http2;
mod world;
mod writes;
