//! Descriptions of APIs in the layouts of others, as [`ApiDocument`](super::ApiDocument)s.

mod apibank;
mod body;
mod examples;
mod left_out;
mod mcp;
mod openapi;
mod operations;
mod reference;
mod schema;
mod stabletoolbench;
#[cfg(test)]
mod tests;

pub use apibank::{ApiBankSet, apibank_documents, import_apibank};
pub use examples::{ExampleResponses, import_openapi_examples, import_openapi_examples_file};
pub use left_out::LeftOut;
pub use mcp::{import_mcp_file, import_mcp_tools};
pub use openapi::{ImportedApis, RequestBodies, import_openapi, import_openapi_file};
pub use operations::{
    ApiOperation, OperationBody, ParameterLocation, ParameterPlace, ParameterStyle,
    import_openapi_operations, import_openapi_operations_file,
};
pub use stabletoolbench::import_stabletoolbench;

pub(super) use stabletoolbench::placed_documents;
